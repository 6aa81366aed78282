"""Fixtures: a lab for each module, and a cluster on its hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.hosts import lab as labs
from tests.hosts.clusters import Cluster
from tests.hosts.lab import Lab

REQUIRED = os.environ.get("CLUSTERTUNE_HOSTS") == "required"


def _skip(reason: str) -> None:
    assert not REQUIRED, f"CLUSTERTUNE_HOSTS=required, but {reason}"
    pytest.skip(reason)


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip tests on machines that cannot have hosts."""
    if reason := labs.missing():
        _skip(reason)


@pytest.fixture(scope="module")
def lab(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with labs.opened(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def module_cluster(lab: Lab) -> Iterator[Cluster]:
    cluster = Cluster(lab)
    yield cluster
    cluster.repair()
    cluster.stop()


@pytest.fixture
def cluster(module_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster of the module, on hosts without faults."""
    yield module_cluster
    module_cluster.repair()


@pytest.fixture
def limits(lab: Lab) -> None:
    """Skip tests where hosts cannot have limits; they are not required."""
    if lab.no_limits:
        pytest.skip(lab.no_limits)
