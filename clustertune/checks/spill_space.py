"""Room, and kind, of the disk to which workers spill.

At ``target`` and ``spill`` a worker writes keys into its local directory. If that is a
file system in memory, nothing is gained; if it is on the network, all workers wait for
it; and when it is full, tasks fail with ``OSError: No space left on device``. The room
is compared with what the workers that share the disk may manage.

Remedy: start workers with ``--local-directory`` on a local disk with room, or set
``temporary-directory`` in Dask's configuration there.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Details, Finding, Severity, View, WorkerSnapshot
from clustertune.core.wording import bytes_text, printable, workers_text
from clustertune.planner.machines import details_of

FULL = 2**30  # bytes: with less, any spilling soon fails
MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs",
     "fuse.sshfs", "9p", "afs", "fuse.s3fs", "fuse.gcsfuse", "pvfs2", "wekafs")
)  # fmt: skip


def find(view: View, *, least: float = 0.1) -> Iterator[Finding]:
    """Find workers that spill into memory, over the network, or without room.

    Parameters
    ----------
    view
        What is seen.
    least
        Room that a disk should have, as a fraction of what its workers may hold.
    """
    spilling = [(w, d) for w, d in details_of(view) if _may_spill(w)]
    for kinds, where in ((MEMORY, "in memory"), (NETWORK, "on the network")):
        some = [w for w, d in spilling if d.disk in kinds]
        if some:
            at_work = any(w.spilled for w in some)
            kind = next(d.disk for _, d in spilling if d.disk in kinds)
            yield Finding(
                severity=Severity.warning if at_work else Severity.info,
                message=f"{workers_text([w.id for w in some])} would spill to a file "
                f"system {where} ({printable(kind)})",
                subject=tuple(w.id for w in some),
                evidence={"kind": kind},
            )
    for workers, details in _disks(spilling):
        held = sum(w.memory_limit for w in workers)
        if details.disk_free < least * held:
            # much memory beside a small disk is usual, as long as nothing spills
            at_work = any(w.spilled for w in workers)
            full = details.disk_free < FULL
            yield Finding(
                severity=Severity.warning if at_work or full else Severity.info,
                message=f"{bytes_text(details.disk_free)} are free where "
                f"{workers_text([w.id for w in workers])} spill; together they may "
                f"hold {bytes_text(held)}",
                subject=tuple(w.id for w in workers),
                evidence={"free_bytes": details.disk_free, "limits_bytes": held},
            )


def _may_spill(worker: WorkerSnapshot) -> bool:
    thresholds = worker.thresholds
    on = [getattr(thresholds, name, None) for name in ("target", "spill")]
    return bool(worker.memory_limit) and any(on)


def _disks(
    spilling: list[tuple[WorkerSnapshot, Details]],
) -> Iterator[tuple[list[WorkerSnapshot], Details]]:
    """Workers by the disk that they share: same host, kind and size."""
    shared: dict[tuple[str, str, int], list[tuple[WorkerSnapshot, Details]]] = {}
    for worker, details in spilling:
        key = worker.host, details.disk, details.disk_total
        shared.setdefault(key, []).append((worker, details))
    for group in shared.values():
        yield [w for w, _ in group], group[0][1]
