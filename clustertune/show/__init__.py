"""The panel: what it is told, and the ways by which it is shown."""
