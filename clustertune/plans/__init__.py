"""From findings to outcomes: what is planned, refused, carried out and kept."""
