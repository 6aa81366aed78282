"""Add the page to the dashboard of a scheduler.

``/clustertune`` becomes a page of the dashboard's first Bokeh application. It has its
prefix and its origins, and stays until the scheduler ends. A second call replaces its
contents.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from clustertune.dashboard import page
from clustertune.dashboard.state import make
from clustertune.remote.scheduler.plugin import NAME

PATH = "/clustertune"
NO_PLUGIN = (
    "the scheduler plugin of clustertune is gone; "
    "run clustertune.dashboard_page(client)"
)


def mount(dask_scheduler: Any) -> dict[str, Any]:
    """Add the page, or replace its contents.

    Return ``path`` of the page, with the dashboard's prefix, or ``error``.
    """
    from bokeh.server.tornado import BokehTornado

    served: Any = getattr(dask_scheduler, "http_application", None)
    apps = [
        a for a in getattr(served, "applications", ()) if isinstance(a, BokehTornado)
    ]
    if not apps:
        return {"error": "serves no dashboard"}
    first = apps[0]
    if PATH not in first.app_paths:
        _add(dask_scheduler, served, first)
    # the page looks its function up here, so a later release can replace it
    served.clustertune = partial(page.build, read=partial(_read, dask_scheduler))
    return {"path": first.prefix.rstrip("/") + PATH}


async def _read(scheduler: Any) -> Any:
    plugin = scheduler.plugins.get(NAME)
    if plugin is None:
        return make(scheduler=scheduler.address, trouble=NO_PLUGIN)
    return await plugin.page_data.look()


def _add(scheduler: Any, served: Any, first: Any) -> None:
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables = template_variables(scheduler)  # all pages of the dashboard share it
    ours = BokehApplication(
        {PATH: partial(_fill, served)},
        scheduler,
        prefix=first.prefix,
        template_variables=variables,
    )
    served.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    first._applications.update(ours._applications)
    variables["pages"].append(PATH.strip("/"))


def _fill(served: Any, scheduler: Any, extra: Any, document: Any) -> None:
    """Fill a document; Dask calls this for each reader."""
    from distributed.dashboard.components.scheduler import env

    served.clustertune(document)
    document.template = env.from_string(page.DASK_TEMPLATE)
    document.template_variables.update(extra)
