"""Code that runs in the scheduler.

``plugin`` answers requests. It uses ``lease`` (who may act), ``jobs`` (work in the
background), ``survey`` and ``state`` (reading), and ``page``. The jobs are ``mover``,
``restart`` (with ``evacuation`` and ``nanny``) and ``release``. ``lease`` (also of
runs) and ``schedule_runner`` watch the cluster. ``bindings`` guards where tasks run,
and which replicas stay. ``telemetry`` records what happens.
"""
