"""TensorFlow: with a role ``ps``, a server for each role; without, mirrored workers.

With parameter servers every role finds its own server at ``ctx.target``, and a graph
puts its variables on those of ``ps`` (between-graph replication). Without them the
members of role ``worker`` are those of a ``MultiWorkerMirroredStrategy``, which starts
what it needs itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from clustertune.remote import tensorflow_roles
from clustertune.remote.tensorflow_roles import WORKER
from clustertune.training.frameworks import Framework, Spec


def framework(roles: Collection[str]) -> Framework:
    """Which of the two, by the names of the roles.

    Raises
    ------
    ValueError
        None of them is what TensorFlow calls a worker.
    """
    if "ps" in roles:
        return SERVERS
    if WORKER not in roles:
        raise ValueError(
            f'roles: framework="tensorflow" needs a role {WORKER!r} that trains, and '
            'may have parameter servers, called "ps"; there are '
            f"{', '.join(map(repr, roles))}"
        )
    return MIRRORED


def _configured(cluster: Spec, role: str, rank: int) -> dict[str, str]:
    task = {"type": role, "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _served(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """The whole cluster; and calls to a server that is gone fail, and do not wait."""
    return {**_configured(spec, role, rank), "GRPC_FAIL_FAST": "true"}


def mirrored(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Who the workers are. Other roles take no part, and know nothing of them."""
    if role != WORKER:
        return {}
    return _configured({WORKER: spec[WORKER]}, role, rank)


def target(spec: Spec, role: str, rank: int) -> str:
    """Where sessions of a role begin: its own server."""
    return f"grpc://{spec[role][rank]}"


SERVERS = Framework(
    name="tensorflow",
    modules=("tensorflow",),
    workload="tf_ps",
    environment=_served,
    target=target,
    around=tensorflow_roles.with_server,
    bare=tensorflow_roles.serve,
)

MIRRORED = Framework(
    name="tensorflow",
    modules=("tensorflow",),
    workload="tf_mirrored",
    equal=True,
    environment=mirrored,
    around=tensorflow_roles.mirrored,
)
