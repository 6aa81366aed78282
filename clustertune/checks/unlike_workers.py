"""Workers with other numbers of threads or other memory than the rest.

Rows are placed in proportion to threads, so a worker with twice the threads gets twice
the rows, and needs twice the memory for them. Every round of a fit ends when the
slowest worker is done, so unlike CPUs below the same number of threads cost time too.

Remedy: make all workers alike, ``clustertune.resize(client, nthreads=...,
memory_limit=...)``, or name those that are alike: ``clustertune.prepare(client, X, y,
workers=[...])``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import bytes_text, plural


def find(view: View, *, slack: float = 0.05) -> Iterator[Finding]:
    """Find that workers are not alike.

    Parameters
    ----------
    view
        What is seen.
    slack
        By how much limits may differ, as a fraction of the largest.
    """
    workers = view.eligible_workers
    threads = Counter(w.nthreads for w in workers)
    limits = [w.memory_limit / w.nthreads for w in workers]
    if len(threads) > 1:
        text = ", ".join(
            f"{plural(count, 'worker')} with {plural(n, 'thread')}"
            for n, count in sorted(threads.items())
        )
        yield _finding(f"workers are not alike: {text}", view)
    if limits and min(limits) < (1 - slack) * max(limits):
        yield _finding(
            "workers have unlike memory for each thread, and so for its rows: "
            f"{bytes_text(min(limits))} to {bytes_text(max(limits))}",
            view,
        )


def _finding(message: str, view: View) -> Finding:
    return Finding(
        severity=Severity.info,
        message=message,
        subject=tuple(w.id for w in view.eligible_workers),
        evidence={"workers": len(view.eligible_workers)},
    )
