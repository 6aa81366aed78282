"""What runs in other processes: scheduler, workers and nannies.

Modules here import the standard library and ``distributed`` only (and Dask and psutil,
which that needs): the other side has neither clustertune nor, on a scheduler, NumPy.
:mod:`clustertune.dashboard.mount` alone imports the panel, and Bokeh with it.
They leave this process through :mod:`clustertune.remote.ship` alone, as bytes, and only
after :mod:`clustertune.remote.versions` has seen that the other side can run them.
"""
