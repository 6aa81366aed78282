"""Reads a live cluster: workers, scheduler, data placement, row counts."""
