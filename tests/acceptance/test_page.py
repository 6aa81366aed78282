"""The page is served by the dashboard of the cluster."""

from __future__ import annotations

import urllib.request
from typing import Any

from bokeh.client import pull_session
from bokeh.models import Div

import clustertune
from tests.acceptance.helpers import ROWS, load
from tests.processes import until


def test_page(local_cluster: Any) -> None:
    _, client = local_cluster(2)
    X, y = load(client)
    clustertune.prepare(client, X, y, estimator="xgboost")

    page = clustertune.dashboard_page(client)

    with urllib.request.urlopen(page.url, timeout=30) as answer:
        assert answer.status == 200
        assert b"clustertune" in answer.read()
    # a session over a websocket, as a browser opens it
    with pull_session(url=page.url) as session:
        document = session.document
        assert document.title == "clustertune"
        rows = f'<td style="white-space:nowrap">{ROWS // 2:,}<'
        until(lambda: text_of(session).count(rows) >= 2)


def text_of(session: Any) -> str:
    """The HTML of the whole page as it is now."""
    session.force_roundtrip()
    document = session.document
    return "".join(div.text for div in document.select({"type": Div}))
