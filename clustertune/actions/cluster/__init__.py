"""The live cluster that actions change."""
