"""Which rows make a piece, and which worker gets it (pure, on NumPy arrays)."""
