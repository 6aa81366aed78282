"""Into how many pieces data is cut (pure).

One for every thread is the fewest that keeps all of them busy. More make rows lie more
evenly after workers come or go, and cost a task each: there are more only while the
work on a piece is long beside what the cluster takes for a task.
"""

from __future__ import annotations

import math

from clustertune.core.model import View

LONG = 100  # times the overhead that the task of a piece takes at least
#: bytes per second that a thread goes over once: for variances or products of columns
#: 1.6 to 2.0 GB/s were measured, float32 and float64, in arrays beyond all caches
PASS = 2e9


def wanted(nbytes: float | None, view: View, n_threads: int) -> int:
    """Pieces of so many bytes (None: unknown) for so many threads, as many for each."""
    profile = view.goal.workload
    if nbytes is None:
        return n_threads * profile.pieces_per_thread
    each = nbytes / n_threads
    least = max(1, math.ceil(each / max(1, largest(view))))
    return n_threads * max(least, _affordable(each, view))


def largest(view: View) -> int:
    """Bytes of a piece above which it is cut, of all members together."""
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    return min([view.goal.workload.max_piece_bytes, *(n // 10 for n in limits)])


def _affordable(nbytes: float, view: View) -> int:
    """Pieces of a thread's bytes that are long tasks; where none was timed, a few."""
    profile, overhead = view.goal.workload, view.now.overhead
    # a model that depends on the number of pieces must not depend on a stopwatch
    if overhead is None or profile.keeps_pieces:
        return profile.pieces_per_thread
    long = nbytes / (LONG * overhead * PASS)
    return min(profile.pieces_per_thread, int(long))


def said(view: View) -> str:
    """What was measured, in words; nothing where it was not."""
    overhead = view.now.overhead
    if overhead is None or view.goal.workload.keeps_pieces:
        return ""
    return f"a task costs {overhead * 1e3:.2g} ms here"
