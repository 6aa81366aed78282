"""What can go wrong that a user can mend.

Misuse of an argument raises the builtin ``TypeError`` or ``ValueError``; what the
cluster or the data make impossible raises one of these. Every text says what was
found, what is allowed and what to do. An error raised by :func:`clustertune.prepare`
carries the report of what was seen and done until then as ``report``.
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
    """The pieces of X, y and their companions do not fit together or the workers."""


class GroupOrderError(ClustertuneError):
    """Rows of a group (qid) are not neighbours, or groups are not in order."""


class GroupSplitError(ClustertuneError):
    """A group (qid) would have to be cut, or is larger than a worker has room for."""


class ClassCoverageError(ClustertuneError):
    """Not every worker can have a row of every class."""


class CapacityError(ClustertuneError):
    """The data, or the fit, does not fit the memory that the workers have."""


class RefusedError(ClustertuneError):
    """What was asked for would lose data, or cannot be; nothing was touched."""


class ChangedError(ClustertuneError):
    """Things are not as the plan saw them; ``report`` says what was done until then."""


class SharedDataError(ClustertuneError):
    """Data that was to be freed is needed by somebody else."""


class VersionMismatchError(ClustertuneError):
    """Scheduler or workers run software to which code must not be sent."""


class LeaseHeldError(ClustertuneError):
    """Another plan is being carried out on this cluster."""


class ScaleError(ClustertuneError):
    """The cluster cannot be scaled, or the workers asked for did not come."""


class IncompleteError(ClustertuneError):
    """Data could not be loaded, or was lost with a worker and cannot be recomputed."""


class PlaybookError(ClustertuneError, ValueError):
    """A playbook is not as it must be; nothing was done. A line for each mistake."""


class SaveError(ClustertuneError):
    """Data could not be written, or what was saved is not as it was; none is lost."""


class RecreateError(ClustertuneError):
    """A cluster was not made anew; the text says where saved data lies."""


class HistoryError(ClustertuneError):
    """The file of past runs cannot be read or written; nothing else is affected."""


class VerificationError(ClustertuneError):
    """Looking again showed a state that must not be: rows missing or mispaired."""


class LayoutChanged(VerificationError):  # noqa: N818 (it says what happened)
    """Prepared data lies otherwise than it was handed over."""


class ItemError(ClustertuneError):
    """A function failed at an item; where it raised an error, that is the cause.

    Attributes
    ----------
    items
        Numbers of the items: one, or those of a task whose worker did not survive it.
    """

    items: tuple[int, ...] = ()


class RoleError(ClustertuneError):
    """A role failed, was lost, or did not begin or end; its own error is the cause.

    Attributes
    ----------
    role, rank
        The one that was the first.
    worker
        The address of its worker.
    """

    role: str = ""
    rank: int = 0
    worker: str = ""


class TimedOutError(ClustertuneError, TimeoutError):
    """The time that was given is over; the data is whole, where the report says."""


#: what was asked for was not begun: the cluster, or a rule, stands against it
REFUSALS = (
    AlignmentError,
    CapacityError,
    LeaseHeldError,
    NoWorkersError,
    RefusedError,
    ScaleError,
    VersionMismatchError,
)
