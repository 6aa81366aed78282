from __future__ import annotations

import json
import os
from importlib.util import find_spec
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from clustertune.errors import NoWorkersError
from clustertune.training import frameworks, remote_roles, run_roles
from tests.in_process import gen_cluster

SPEC = {"scorer": ["10.0.0.1:7"], "worker": ["10.0.0.2:8", "[::1]:9"]}


def test_the_environment_of_torch() -> None:
    """Each role is a process group, whose rank 0 waits for the others."""
    torch = frameworks.choose("torch")
    assert torch.environment(SPEC, "worker", 1) == {
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "8",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }
    six = {"worker": ["[::1]:9"]}
    assert torch.environment(six, "worker", 0)["MASTER_ADDR"] == "::1"


def test_the_environment_of_tensorflow() -> None:
    """The strategy accepts a cluster of workers only."""
    mirrored = frameworks.choose("tensorflow", SPEC)
    text = mirrored.environment(SPEC, "worker", 0)["TF_CONFIG"]
    assert json.loads(text) == {
        "cluster": {"worker": SPEC["worker"]},
        "task": {"type": "worker", "index": 0},
    }
    assert mirrored.environment(SPEC, "scorer", 0) == {}
    assert (mirrored.workload, mirrored.synchronous) == ("tf_mirrored", True)
    with pytest.raises(
        ValueError, match=r"needs a role 'worker' .* there are 'trainer'"
    ):
        frameworks.choose("tensorflow", ["trainer"])


@pytest.mark.skipif(bool(find_spec("tensorflow")), reason="TensorFlow is installed")
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_workers_without_tensorflow_are_named(c: Any, s: Any, a: Any) -> None:
    roles = {"worker": (1, lambda ctx: None)}
    with pytest.raises(NoWorkersError, match="cannot import tensorflow"):
        await run_roles(c, roles, framework="tensorflow")


def test_no_framework_sets_nothing() -> None:
    none = frameworks.choose(None)
    assert none.environment(SPEC, "worker", 0) == {}


def test_an_unknown_framework() -> None:
    with pytest.raises(ValueError, match=r"framework='jax' must be one of .*\"torch\""):
        frameworks.choose("jax")


def test_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an error. A process has the environment of one role at a time."""
    monkeypatch.setenv("RANK", "old")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    ours = {"RANK": "1", "WORLD_SIZE": "2", remote_roles.VARIABLE: "worker 1"}
    with remote_roles.environment(ours):
        assert os.environ["RANK"] == "1"
        other = remote_roles.environment({remote_roles.VARIABLE: "scorer 0"})
        with pytest.raises(RuntimeError, match="runs worker 1 already"), other:
            pass
    assert dict(os.environ) == before
    with pytest.raises(KeyError), remote_roles.environment(ours):
        raise KeyError
    assert dict(os.environ) == before
    with remote_roles.environment({}):
        assert dict(os.environ) == before


def test_mirrored_workers_abort_when_another_role_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would wait in their collective calls; a role that has ended does not."""
    reasons: list[str] = []
    monkeypatch.setattr(frameworks, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(frameworks, "_abort_collectives", reasons.append)
    context, ended = SimpleNamespace(aborted=Event()), Event()
    context.aborted.set()
    frameworks._watch_other_roles(context, ended)
    assert reasons == ["another role has failed"]
    ended.set()
    frameworks._watch_other_roles(context, ended)
    assert len(reasons) == 1
