from __future__ import annotations

import json
import os
import socket
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from clustertune.errors import NoWorkersError
from clustertune.training import frameworks, remote_roles, run_roles
from tests.in_process import gen_cluster

SPEC = {"ps": ["10.0.0.1:7"], "worker": ["10.0.0.2:8", "[::1]:9"]}


def test_the_environment_of_torch() -> None:
    """Each role is a process group, whose rank 0 waits for the others."""
    torch = frameworks.choose("torch")
    assert torch.environment(SPEC, "worker", 1) == {
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "8",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }
    assert torch.target(SPEC, "worker", 1) == "tcp://10.0.0.2:8"
    six = {"worker": ["[::1]:9"]}
    assert torch.environment(six, "worker", 0)["MASTER_ADDR"] == "::1"


def test_tensorflow_with_parameter_servers() -> None:
    """Every role has a server in one cluster, and ranks do not run in step."""
    servers = frameworks.choose("tensorflow", SPEC)
    environment = servers.environment(SPEC, "worker", 1)
    assert environment["GRPC_FAIL_FAST"] == "true"
    assert json.loads(environment["TF_CONFIG"]) == {
        "cluster": SPEC,
        "task": {"type": "worker", "index": 1},
    }
    assert servers.target(SPEC, "worker", 0) == "grpc://10.0.0.2:8"
    assert servers.server is not None
    assert (servers.workload, servers.synchronous) == ("tf_ps", False)


def test_tensorflow_without_parameter_servers() -> None:
    """The strategy accepts a cluster of workers only."""
    spec = {"worker": SPEC["worker"], "scorer": ["10.0.0.3:1"]}
    mirrored = frameworks.choose("tensorflow", spec)
    text = mirrored.environment(spec, "worker", 0)["TF_CONFIG"]
    assert json.loads(text) == {
        "cluster": {"worker": spec["worker"]},
        "task": {"type": "worker", "index": 0},
    }
    assert mirrored.environment(spec, "scorer", 0) == {}
    assert mirrored.target(spec, "worker", 0) is None
    assert mirrored.server is None
    assert (mirrored.workload, mirrored.synchronous) == ("tf_mirrored", True)
    with pytest.raises(
        ValueError, match=r"needs a role 'worker' .* there are 'trainer'"
    ):
        frameworks.choose("tensorflow", ["trainer"])


@pytest.mark.skipif(bool(find_spec("tensorflow")), reason="TensorFlow is installed")
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_workers_without_tensorflow_are_named(c: Any, s: Any, a: Any) -> None:
    roles = {"worker": (1, lambda ctx: None)}
    with pytest.raises(
        NoWorkersError, match=r"tensorflow cannot be imported on worker"
    ):
        await run_roles(c, roles, framework="tensorflow")


def test_no_framework_sets_nothing() -> None:
    none = frameworks.choose(None)
    assert none.environment(SPEC, "worker", 0) == {}
    assert none.target(SPEC, "worker", 0) is None
    assert none.server is None


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
        other = remote_roles.environment({remote_roles.VARIABLE: "ps 0"})
        with pytest.raises(RuntimeError, match="runs worker 1 already"), other:
            pass
    assert dict(os.environ) == before
    with pytest.raises(KeyError), remote_roles.environment(ours):
        raise KeyError
    assert dict(os.environ) == before
    with remote_roles.environment({}):
        assert dict(os.environ) == before


# --- sockets of TensorFlow; tests/deep has the rest -----------------------------------


@pytest.mark.parametrize("connected", [False, True])
def test_no_client_reaches_a_socket_after_its_shutdown(connected: bool) -> None:
    """The owner keeps the socket; connected clients see its end."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        host, port = server.getsockname()
        place = f"{host}:{port}"
        assert frameworks._accepts(place)
        server.accept()[0].close()
        if connected:
            other.connect((host, port))
            accepted, _ = server.accept()
        frameworks._shut_down(port)
        assert not frameworks._accepts(place)
        assert server.fileno() >= 0
        if connected:
            with accepted:
                assert other.recv(1) == b""


def test_sockets_with_psutil_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask allows releases in which the method has another name."""
    monkeypatch.setattr(psutil.Process, "connections", psutil.Process.net_connections)
    monkeypatch.delattr(psutil.Process, "net_connections")
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        frameworks._shut_down(port)
        assert not frameworks._accepts(f"{host}:{port}")


def test_waiting_for_a_server_ends_with_a_stop() -> None:
    """The error names the missing server."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        places = [f"127.0.0.1:{there.getsockname()[1]}"]
        with socket.socket() as bound:  # bound but not listening
            bound.bind(("127.0.0.1", 0))
            places.append(f"127.0.0.1:{bound.getsockname()[1]}")
            context = SimpleNamespace(spec={"ps": places}, wait=lambda seconds: True)
            with pytest.raises(
                RuntimeError, match=r"the TensorFlow server of ps 1 accepted"
            ):
                frameworks._wait_for_servers(context)
