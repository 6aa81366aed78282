"""Restarts for later: what is checked before, the moments, how they stand."""
