"""Code that runs in other processes: the scheduler, workers and nannies.

Modules here import the standard library and ``distributed`` only (and Dask and psutil,
which that needs): the other side has neither clustertune nor, on a scheduler, NumPy.
Only :mod:`clustertune.dashboard.mount` imports the page, and Bokeh with it. Code leaves
this process only through :mod:`clustertune.remote.ship`, as bytes, and only after
:mod:`clustertune.remote.ship` has checked that the other side can run it.
"""
