"""Workers of which Dask manages more memory than their process has.

Dask adds up what each key says that it takes. Where several keys share memory (a
training library packs pieces of X and y into dictionaries, slices are views of a larger
array, files are mapped into memory) it counts the same bytes again and again. At
``target`` (0.60 of the limit) such a worker writes keys to disk although memory is free
(distributed#4186).

Remedy: let go of what shares memory with other keys (``del``), copy slices that are to
stay (``X = X.map_blocks(np.array)``), or raise
``distributed.worker.memory.target`` for the workers.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View, WorkerSnapshot
from clustertune.core.wording import bytes_text, workers_text


def find(view: View, *, excess: float = 0.05) -> Iterator[Finding]:
    """Find workers that manage more than they have.

    Parameters
    ----------
    view
        What is seen.
    excess
        By how much, as a fraction of the memory limit.
    """
    found = [w for w in view.now.workers if _excess(w) > excess]
    if not found:
        return
    worst = max(found, key=_excess)
    spills = [w for w in found if _spills(w)]
    yield Finding(
        severity=Severity.warning if spills else Severity.info,
        message=f"Dask counts {bytes_text(worst.counted)} of keys in memory on "
        f"{workers_text([worst.id])}, whose process has {bytes_text(worst.process)}: "
        "some bytes are counted more than once"
        + ("; it writes keys to disk for that" if spills else ""),
        subject=tuple(w.id for w in found),
        evidence={"counted_bytes": worst.counted, "process_bytes": worst.process},
    )


def _excess(worker: WorkerSnapshot) -> float:
    """Managed beyond process memory, over the limit; of a process of its own."""
    if not worker.memory_limit or worker.address.startswith("inproc://"):
        return 0.0
    return max(0, worker.counted - worker.process) / worker.memory_limit


def _spills(worker: WorkerSnapshot) -> bool:
    """Whether managed memory alone makes it write keys to disk."""
    target = getattr(worker.thresholds, "target", None)
    return target is not None and worker.counted >= target * worker.memory_limit
