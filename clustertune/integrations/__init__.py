"""Training libraries, one file each, and cluster managers."""
