"""Dask collections: what was given; graphs that load, cut, convert and reorder."""
