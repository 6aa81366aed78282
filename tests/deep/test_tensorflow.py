"""TensorFlow and PyTorch in workers, with the code of docs/deep-learning.md."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from clustertune.errors import FunctionError
from clustertune.training import run_roles
from tests.processes import local_workers, until

PAGE = Path(__file__).parents[2] / "docs" / "deep-learning.md"
ENOUGH = 0.92  # of the digits that no worker has seen; the page goes a little further

lacking = [name for name in ("tensorflow", "torch") if find_spec(name) is None]
# tox's environment for them must have them: it would have tried nothing
required = os.environ.get("CLUSTERTUNE_DEEP") == "required"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(lacking) and not required, reason=f"no {' and no '.join(lacking)} here"
    ),
    pytest.mark.timeout(600),  # TensorFlow takes its time to load, in each process
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of four processes, which import TensorFlow once for all tests."""
    with local_workers(4, memory_limit="3GiB") as client:
        yield client


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Return the names that the blocks of the page define; they travel by value."""
    blocks = r"<!-- deep: \w+ -->\n```python\n(.*?)```"
    found: dict[str, Any] = {"__name__": "of_the_page"}
    for code in re.findall(blocks, PAGE.read_text(), flags=re.DOTALL):
        exec(code, found)
    return found


def left(client: Client) -> dict[str, list[str]]:
    """Return by worker the environment variables of roles that remain."""

    def look() -> list[str]:
        names = "TF_CONFIG", "CLUSTERTUNE_ROLE", "RANK"
        return [name for name in names if name in os.environ]

    return {worker: names for worker, names in client.run(look).items() if names}


def unreachable(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return True
    return False


# --- with parameter servers -----------------------------------------------------------


def test_parameter_servers(client: Any, page: dict[str, Any]) -> None:
    """Training ends at the score, and runs again in the same processes."""
    for _ in range(2):
        scores, steps = page["with_servers"](client, ENOUGH)
        assert max(scores) >= ENOUGH
        assert all(count > 0 for count in steps)
        assert not left(client)


def test_nobody_reaches_a_server_afterwards(client: Any) -> None:
    """The server cannot be stopped; it is reachable only during the roles."""

    def ask(ctx: Any) -> str:
        import tensorflow as tf

        with tf.Graph().as_default(), tf.compat.v1.device("/job:ps/task:0"):
            answer = tf.strings.join(["by ", "the ps"])
        with tf.compat.v1.Session(ctx.target, graph=answer.graph) as session:
            return str(session.run(answer), "ascii")

    roles = {"ps": 1, "worker": (1, ask)}
    with run_roles(client, roles, framework="tensorflow") as running:
        assert running.result() == {"ps": [None], "worker": ["by the ps"]}
    places = [place for of_role in running.spec.values() for place in of_role]
    assert all(unreachable(place) for place in places)


def fail_when_there(cause: str, role: str) -> Any:
    """Return a function that trains without end, and fails in one role."""

    def train(ctx: Any) -> None:
        import os
        import signal

        import tensorflow as tf

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            with v1.device("/job:ps/task:0"):
                sums = v1.get_variable("sums", [], initializer=v1.zeros_initializer())
                more = sums.assign_add(1.0)
            filters = ["/job:ps", f"/job:{ctx.role}/task:{ctx.rank}"]
            config = v1.ConfigProto(device_filters=filters)
            with v1.Session(ctx.target, config=config) as session:
                session.run(v1.global_variables_initializer())
                while not ctx.should_stop():
                    session.run(more.op)
                    ctx.report(os.getpid())
                    if ctx.rank == 1 and role == "worker" and cause == "error":
                        raise KeyError("mine")
                    if ctx.rank == 1 and role == "worker" and cause == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)

    return train


@pytest.mark.parametrize(
    ("cause", "role", "said"),
    [
        ("error", "worker", r"^worker 1 .* failed: KeyError: 'mine'"),
        ("killed", "worker", r"^worker 1 .* is lost"),
        ("killed", "ps", r"^ps 0 .* is lost"),
    ],
)
def test_all_end_with_one(client: Any, cause: str, role: str, said: str) -> None:
    """The error names the first cause, not the errors of TensorFlow's sessions."""
    until(lambda: len(client.nthreads()) == 4, 60)
    roles = {"ps": 1, "worker": (2, fail_when_there(cause, role))}
    running = run_roles(client, roles, framework="tensorflow")
    if role == "ps":
        next(iter(running.scores))
        where = running.workers["ps"]
        (process,) = client.run(os.getpid, workers=where).values()
        os.kill(process, signal.SIGKILL)
    with pytest.raises(FunctionError, match=said):
        running.result()
    until(lambda: len(client.nthreads()) == 4, 60)
    assert not left(client)


def test_a_coordinator_of_servers(client: Any, tmp_path: Path) -> None:
    """Workers read files for ``ParameterServerStrategy``."""
    lines = tmp_path / "lines"
    lines.write_text("hello\n")

    def coordinate(ctx: Any, file: str = str(lines)) -> str:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({r: p for r, p in ctx.spec.items() if r != "chief"}),
            rpc_layer="grpc",
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        read = coordinator.create_per_worker_dataset(
            lambda: tf.data.TextLineDataset(file)
        )

        @tf.function
        def one_of(rows: Any) -> Any:
            return next(rows)

        line = coordinator.schedule(one_of, args=(iter(read),))
        coordinator.join()
        return str(line.fetch(), "utf-8")

    roles = {"ps": 1, "worker": 1, "chief": (1, coordinate)}
    with run_roles(
        client, roles, framework="tensorflow", target_role="chief"
    ) as running:
        assert running.result()["chief"] == ["hello"]


# --- mirrored -------------------------------------------------------------------------


def test_mirrored_workers(client: Any, page: dict[str, Any]) -> None:
    """Both workers have the same model; a process can begin only once."""
    client.restart()
    scores, (one, two) = page["with_mirrors"](client, ENOUGH)
    assert max(scores) >= ENOUGH
    assert all(np.array_equal(a, b) for a, b in zip(one, two))
    assert not left(client)
    roles = {"worker": (4, lambda ctx: None)}  # some of them were members
    with pytest.raises(FunctionError, match=r"has been a mirrored worker .*restart"):
        run_roles(client, roles, framework="tensorflow").result()


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("error", r"^worker 1 .* failed: KeyError: 'mine'"),
        ("killed", r"^worker 1 .* is lost"),
    ],
)
def test_mirrored_workers_end_together(client: Any, cause: str, said: str) -> None:
    """No worker waits in a collective call for a lost one."""

    def train(ctx: Any) -> None:
        import os
        import signal

        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        steps = 0
        with strategy.scope():
            while not ctx.should_stop():
                steps += 1
                if ctx.rank == 1 and steps == 20 and cause == "error":
                    raise KeyError("mine")
                if ctx.rank == 1 and steps == 20:
                    os.kill(os.getpid(), signal.SIGKILL)

    client.restart()
    with pytest.raises(FunctionError, match=said) as caught:
        run_roles(client, {"worker": (2, train)}, framework="tensorflow").result()
    assert "did not stop" not in str(caught.value)
    until(lambda: len(client.nthreads()) == 4, 60)


def test_asked_out_of_scope(client: Any) -> None:
    """A rank that asks for a stop outside of the strategy gets an error with a fix."""
    client.restart()
    roles = {"worker": (2, lambda ctx: ctx.should_stop())}
    with pytest.raises(FunctionError, match=r"with strategy\.scope\(\)"):
        run_roles(client, roles, framework="tensorflow").result()


# --- PyTorch --------------------------------------------------------------------------


def test_torch(client: Any, page: dict[str, Any]) -> None:
    """Ranks learn one model."""
    scores, (one, two) = page["with_torch"](client, ENOUGH)
    assert max(scores) >= ENOUGH
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not left(client)
