"""PyTorch: the members of a role are the ranks of one process group.

A role's function calls ``torch.distributed.init_process_group("gloo")``, which finds
all it needs in the environment. The group is ended when the function ends, so that
other ranks that wait for one that has failed fail too.
"""

from __future__ import annotations

from clustertune.remote import torch_group
from clustertune.training.frameworks import Framework, Spec


def environment(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Where rank 0 of the role waits for the others, and which rank this is."""
    host, _, port = spec[role][0].rpartition(":")
    return {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(spec[role])),
    }


def target(spec: Spec, role: str, rank: int) -> str:
    """For ``init_method=``, where the environment is not to be used."""
    return f"tcp://{spec[role][0]}"


FRAMEWORK = Framework(
    name="torch",
    modules=("torch",),
    workload="torch_ddp",
    equal=True,
    environment=environment,
    target=target,
    around=torch_group.around,
)
