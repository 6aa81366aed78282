"""Training libraries and cluster managers, one file each."""
