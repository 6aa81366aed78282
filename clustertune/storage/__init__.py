"""Collections as files and back; a cluster made anew between the two."""
