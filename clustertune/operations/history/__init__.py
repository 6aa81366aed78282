"""What past runs measured, how it is kept, and what it tells."""
