"""A cluster over time: ``check``, the ``Monitor``, and ``hold`` during a fit."""
