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
    """The cluster has no worker that could hold or train on the data."""


class ConnectionLostError(ClustertuneError):
    """The client is closed, or its scheduler does not answer."""


class AlignmentError(ClustertuneError):
    """The partitions of X, y and companions do not match each other or the workers."""


class GroupOrderError(ClustertuneError):
    """Rows of a group (qid) are not consecutive, or groups are not in order."""


class GroupSplitError(ClustertuneError):
    """A group (qid) would be cut, or is larger than the free memory of a worker."""


class ClassCoverageError(ClustertuneError):
    """Not every worker can have a row of every class."""


class CapacityError(ClustertuneError):
    """The data, or the fit, does not fit the memory of the workers."""


class RefusedError(ClustertuneError):
    """The request would lose data, or is impossible; nothing was changed."""


class SharedDataError(ClustertuneError):
    """Data that a call would release is needed by another client or collection."""


class VersionMismatchError(ClustertuneError):
    """Scheduler or workers have versions to which code must not be sent."""


class LeaseHeldError(ClustertuneError):
    """Another plan runs on this cluster."""


class ScaleError(ClustertuneError):
    """The cluster cannot scale, or requested workers did not start."""


class IncompleteError(ClustertuneError):
    """Data could not be loaded, or was lost with a worker and cannot be recomputed."""


class PlaybookError(ClustertuneError, ValueError):
    """A playbook is invalid; nothing was done. The text has a line for each mistake."""


class WorkerLostError(ClustertuneError):
    """A worker of a fit has left, and the fit could not finish without it."""


class VerificationError(ClustertuneError):
    """The final look found missing or mispaired rows."""


class LayoutChanged(VerificationError):  # noqa: N818 (it says what happened)
    """Prepared data has moved, or is lost."""

    #: whether rows were lost, or differ from the prepared rows
    rows_changed: bool = False


class ItemError(ClustertuneError):
    """A function failed at an item; its error is the cause.

    Attributes
    ----------
    items
        Numbers of the items: one, or all items of a task whose worker died.
    """

    items: tuple[int, ...] = ()


class RoleError(ClustertuneError):
    """A role failed, was lost, or did not begin or end; its error is the cause.

    Attributes
    ----------
    role, rank
        The first role that failed.
    worker
        The address of its worker.
    """

    role: str = ""
    rank: int = 0
    worker: str = ""


class TimedOutError(ClustertuneError, TimeoutError):
    """The time limit was reached; data in memory is complete, see the report."""


#: the request was refused before anything changed
REFUSALS = (
    AlignmentError,
    CapacityError,
    LeaseHeldError,
    NoWorkersError,
    RefusedError,
    ScaleError,
    VersionMismatchError,
)
