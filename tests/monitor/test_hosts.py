"""Hosts of workers: each machine once, by the name that people use."""

import pytest

from clustertune.core.model import Unknown
from clustertune.monitor import hosts
from tests.builders import worker


def on(id, host, machine, hostname, **overrides):
    return worker(id, host=host, machine=machine, hostname=hostname, **overrides)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        pytest.param(
            [on(0, "10.0.0.1", "a", "node1"), on(1, "10.0.0.2", "b", "node2")],
            ["node1", "node2"],
            id="two machines",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "node1"), on(1, "10.1.0.1", "a", "node1")],
            ["node1", "node1"],
            id="two addresses of one machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "pod-x"), on(1, "10.0.0.2", "a", "pod-y")],
            ["10.0.0.1", "10.0.0.1"],
            id="two containers on one machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "node"), on(1, "10.0.0.2", "b", "node")],
            ["10.0.0.1", "10.0.0.2"],
            id="two machines with one name",
        ),
        pytest.param(
            [on(0, "127.0.0.1", "a", "node1"), on(1, "127.0.0.1", "a", "node1")],
            ["127.0.0.1", "127.0.0.1"],
            id="this machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "", ""), on(1, "10.0.0.2", "", "")],
            ["10.0.0.1", "10.0.0.2"],
            id="unknown",
        ),
        pytest.param(
            [
                on(0, "10.0.0.1", "a", "node1"),
                worker(1, host="10.0.0.1", facts=Unknown("no answer")),
                worker(2, host="10.0.0.2", facts=Unknown("no answer")),
            ],
            ["node1", "node1", "10.0.0.2"],
            id="some do not answer",
        ),
    ],
)
def test_machines_have_one_name(workers, expected):
    assert [w.host for w in hosts.named(workers)] == expected
