"""^C ends a call, also before its first step and during it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client

import clustertune
from clustertune.monitor.connection import sync
from tests.processes import until


@pytest.fixture
def client(local_cluster: Any) -> Client:
    client: Client = local_cluster(1, processes=False)[1]
    return client


def interrupted(
    monkeypatch: pytest.MonkeyPatch, client: Client, call: Callable[[], Any]
) -> None:
    """Raise KeyboardInterrupt in a call once its first step is in the event loop."""
    schedule = client.loop.add_callback

    def interrupt(callback: Any, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        schedule(callback, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(client.loop, "add_callback", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call()


def test_before_the_first_step(monkeypatch: Any, client: Client) -> None:
    """The call does not begin."""
    begun = []

    async def work() -> None:
        begun.append(True)

    interrupted(monkeypatch, client, lambda: sync(client, work))
    client.sync(asyncio.sleep, 0)  # this call came later
    assert begun == []


def test_during_the_call(monkeypatch: Any, client: Client) -> None:
    """It is cancelled once, so its cleanup ends."""
    states = []

    async def work() -> None:
        states.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            states.append("clean")

    def wait(self: Any, timeout: Any = None) -> bool:
        until(lambda: states == ["begun"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("threading.Event.wait", wait)
        with pytest.raises(KeyboardInterrupt):
            sync(client, work)
    until(lambda: states == ["begun", "clean"])


def test_results_and_errors(client: Client) -> None:
    """They are those of the function."""

    async def divide(a: int, b: int) -> float:
        return a / b

    assert sync(client, divide, 3, b=2) == 1.5
    with pytest.raises(ZeroDivisionError):
        sync(client, divide, 3, b=0)


def test_a_hold_that_has_not_begun(monkeypatch: Any, client: Client) -> None:
    """The cluster is not held afterwards."""
    with clustertune.hold(client):
        plugin = client.cluster.scheduler.plugins["clustertune"]
        assert plugin.holds.active()

    def call() -> None:
        with clustertune.hold(client):
            raise AssertionError("the block began")

    interrupted(monkeypatch, client, call)
    clustertune.check(client)  # this call came later
    assert plugin.holds.active() == []
