"""The public calls, and what they share."""
