"""TensorFlow and PyTorch in workers, with the code of docs/deep-learning.md."""

from __future__ import annotations

import os
import re
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
