"""Add the page to the dashboard of a scheduler.

``/clustertune`` and ``/individual-clustertune-...`` become pages of the dashboard's
first Bokeh application. ``/individual-plots.json`` lists its pages. They have its
prefix and its origins, and stay until the scheduler ends. A second call replaces their
contents and adds no pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from clustertune.dashboard import page
from clustertune.dashboard.state import make
from clustertune.remote.scheduler.plugin import NAME

PATH = "/clustertune"
#: parts with a page for each, by its path
INDIVIDUAL = {
    f"/individual-clustertune-{part}": part
    for part in ("memory", "rows", "findings", "timeline")
}
NO_PLUGIN = (
    "the scheduler plugin of clustertune is gone; "
    "run clustertune.dashboard_page(client)"
)


def mount(dask_scheduler: Any) -> dict[str, Any]:
    """Add the pages, or replace their contents.

    Return ``path`` of the page, with the dashboard's prefix, or ``error``.
    """
    served: Any = getattr(dask_scheduler, "http_application", None)
    try:
        from bokeh.server.tornado import BokehTornado
    except ImportError:
        return {"error": "has no Bokeh"}
    apps = [
        a for a in getattr(served, "applications", ()) if isinstance(a, BokehTornado)
    ]
    if not apps:
        return {"error": "serves no dashboard"}
    first = apps[0]
    if PATH not in first.app_paths:
        _add(dask_scheduler, served, first)
    # a page looks its function up here, so a later release can replace it
    served.clustertune = _documents(dask_scheduler)
    return {"path": first.prefix.rstrip("/") + PATH}


def _documents(scheduler: Any) -> dict[str, Callable[[Any], None]]:
    """Return by path the function that fills a document."""

    async def read() -> Any:
        plugin = scheduler.plugins.get(NAME)
        if plugin is None:
            return make(scheduler=scheduler.address, trouble=NO_PLUGIN)
        return plugin.page_data.look()

    rows = {PATH: page.ROWS} | {path: ((part,),) for path, part in INDIVIDUAL.items()}
    return {path: partial(page.build, read=read, rows=r) for path, r in rows.items()}


def _add(scheduler: Any, served: Any, first: Any) -> None:
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables = template_variables(scheduler)  # all pages of the dashboard share it
    ours = BokehApplication(
        {path: partial(_fill, served, path) for path in (PATH, *INDIVIDUAL)},
        scheduler,
        prefix=first.prefix,
        template_variables=variables,
    )
    served.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    first._applications.update(ours._applications)
    variables["pages"].append(PATH.strip("/"))
    variables["plots"] += [
        {"url": path.strip("/"), "name": f"Clustertune {part.title()}"}
        for path, part in INDIVIDUAL.items()
    ]
    variables["plots"].sort(key=lambda plot: str(plot["name"]))


def _fill(served: Any, path: str, scheduler: Any, extra: Any, document: Any) -> None:
    """Fill a document; Dask calls this for each reader."""
    from distributed.dashboard.components.scheduler import env

    served.clustertune[path](document)
    if path == PATH:
        document.template = env.from_string(page.DASK_TEMPLATE)
        document.template_variables.update(extra)
