"""The dashboard page: a Bokeh figure and tables that show a *page state*.

``state``, ``figures``, ``page`` and ``mount`` also run in schedulers without
clustertune. They import only the standard library, Bokeh, each other, and modules that
:mod:`clustertune.remote.ship` sends with them. ``show`` runs in the user's process.
"""
