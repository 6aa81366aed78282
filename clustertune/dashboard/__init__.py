"""The panel's Bokeh components: they show a *page state* and nothing else.

They run in the user's process and in schedulers that have no clustertune, so modules
here import only the standard library, Bokeh, each other and
:mod:`clustertune.core.wording`, which travels with them (see
:mod:`clustertune.remote.ship`). ``showing``, ``serving`` and ``shielding`` run only in
the user's process.
"""
