"""Code that runs in workers and nannies."""
