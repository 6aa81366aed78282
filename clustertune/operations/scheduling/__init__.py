"""Scheduled restarts: rolling restarts that wait for a gap between runs."""
