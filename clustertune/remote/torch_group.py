"""What surrounds a role of PyTorch on its worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def around(context: Any) -> Iterator[None]:
    """All threads of the worker, and an end for the process group.

    Other ranks wait for this one in collective calls: when it fails, its connections
    are closed, at which they fail too.
    """
    import torch
    from torch import distributed

    threads = torch.get_num_threads()
    torch.set_num_threads(context.threads)
    context.agree = agree
    try:
        yield
        if distributed.is_initialized():
            # a rank that ends before the others sometimes hangs while it does
            distributed.barrier()
    finally:
        torch.set_num_threads(threads)
        if distributed.is_initialized():
            distributed.destroy_process_group()


def agree(stop: bool) -> bool:
    """Whether one of the ranks is to stop: then all do, in the same step."""
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        return stop
    on = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    wish = torch.tensor([int(stop)], device=on)
    distributed.all_reduce(wish, op=distributed.ReduceOp.MAX)
    return bool(wish.item())
