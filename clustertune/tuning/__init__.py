"""The calls that tune: ``prepare``, ``restart`` and such, ``plan``, ``apply``."""
