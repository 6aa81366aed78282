"""Errors about clusters and data.

Wrong arguments raise the builtin ``TypeError`` or ``ValueError``. Clusters and data
that make a request impossible raise one of these errors. Every text has the problem,
the allowed values, and a fix. ``report`` is the report of the call until the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clustertune.core.report import Report


class ClustertuneError(Exception):
    """Base of all errors that clustertune raises about a cluster or its data."""

    report: Report | None = None


class NoWorkersError(ClustertuneError):
    """The cluster has no worker for the request, or requested workers cannot start."""


class ConnectionLostError(ClustertuneError):
    """The client is closed, or its scheduler does not answer."""


class AlignmentError(ClustertuneError):
    """X, y and companions do not match, or rows, groups or classes do not suit."""


class CapacityError(ClustertuneError):
    """The data, or the fit, does not fit the memory of the workers."""


class RefusedError(ClustertuneError):
    """The request would lose data, or is impossible; nothing was changed."""


class VersionMismatchError(ClustertuneError):
    """Scheduler or workers have versions to which code must not be sent."""


class LeaseHeldError(ClustertuneError):
    """Another plan runs on this cluster."""


class IncompleteError(ClustertuneError):
    """Data was not loaded or is lost, or a fit cannot finish without a lost worker."""


class VerificationError(ClustertuneError):
    """Rows are missing or mispaired, or prepared data has moved or is lost.

    Attributes
    ----------
    rows_changed
        Whether partitions have fewer or other rows. False if a partition is gone.
    """

    rows_changed: bool = False


class FunctionError(ClustertuneError):
    """A function of the caller failed on the cluster; its error is the cause.

    Attributes
    ----------
    items
        Of ``map_reduce``: numbers of the items, one, or all of a task whose worker
        died.
    role, rank, worker
        Of ``run_roles``: the first role that failed, and the address of its worker. Of
        ``joblib_backend`` and ``map_reduce``: the last worker that a task has ended.
    """

    items: tuple[int, ...] = ()
    role: str = ""
    rank: int = 0
    worker: str = ""


class TimedOutError(ClustertuneError, TimeoutError):
    """The time limit was reached; the report, if any, has what was done and lost."""


#: the request was refused before anything changed
REFUSALS = (
    AlignmentError,
    CapacityError,
    LeaseHeldError,
    NoWorkersError,
    RefusedError,
    VersionMismatchError,
)
