"""Puts the panel into the dashboard that a scheduler serves.

``/clustertune`` and ``/individual-clustertune-...`` become pages of its first Bokeh
application, the one of which ``/individual-plots.json`` lists the pages, with the same
prefix and the same origins. They stay until the scheduler ends: what is called again
replaces what they show and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from clustertune.dashboard import page
from clustertune.dashboard.state import make
from clustertune.remote.scheduler.plugin import NAME

PATH = "/clustertune"
#: parts with a page of their own
INDIVIDUAL = ("memory", "rows", "findings", "timeline")
GONE = (
    "clustertune's part of this scheduler is gone; run clustertune.panel(client) again"
)


def mount(dask_scheduler: Any) -> dict[str, Any]:
    """Add the pages, or bring up to date what they show.

    Returns
    -------
    dict
        ``path`` of the page, with the dashboard's prefix; ``error`` where there can be
        none, and why.
    """
    served: Any = getattr(dask_scheduler, "http_application", None)
    try:
        from bokeh.server.tornado import BokehTornado
    except ImportError:
        return {"error": "it has no Bokeh"}
    apps = [
        a for a in getattr(served, "applications", ()) if isinstance(a, BokehTornado)
    ]
    if not apps:
        return {"error": "it serves no dashboard"}
    first = apps[0]
    if PATH not in first.app_paths:
        _add(dask_scheduler, served, first)
    # not the functions themselves: those of an older release would stay for ever
    served.clustertune = _documents(dask_scheduler)
    return {"path": first.prefix.rstrip("/") + PATH}


def _documents(scheduler: Any) -> dict[str, Callable[[Any], None]]:
    """By path what fills its documents."""

    async def read() -> Any:
        resident = scheduler.plugins.get(NAME)
        if resident is None:
            return make(scheduler=scheduler.address, trouble=GONE)
        return resident.page()

    whole: dict[str, Callable[[Any], None]] = {PATH: partial(page.build, read=read)}
    return whole | {
        _individual(part): partial(page.build, read=read, rows=((part,),))
        for part in INDIVIDUAL
    }


def _individual(part: str) -> str:
    return f"/individual-clustertune-{part}"


def _add(scheduler: Any, served: Any, first: Any) -> None:
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables = template_variables(scheduler)  # the lists that other pages show, too
    paths = [PATH, *map(_individual, INDIVIDUAL)]
    ours = BokehApplication(
        {path: partial(_fill, served, path) for path in paths},
        scheduler,
        prefix=first.prefix,
        template_variables=variables,
    )
    served.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    first._applications.update(ours._applications)
    variables["pages"].append(PATH.strip("/"))
    variables["plots"] += _links()
    variables["plots"].sort(key=lambda plot: str(plot["name"]))


def _links() -> Sequence[dict[str, str]]:
    return [
        {"url": _individual(part).strip("/"), "name": f"Clustertune {part.title()}"}
        for part in INDIVIDUAL
    ]


def _fill(served: Any, path: str, scheduler: Any, extra: Any, document: Any) -> None:
    """What Dask calls for each reader."""
    from distributed.dashboard.components.scheduler import env

    served.clustertune[path](document)
    if path == PATH:
        document.template = env.from_string(page.TEMPLATE)
        document.template_variables.update(extra)
