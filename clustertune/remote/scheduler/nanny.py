"""Calls of nannies during a restart: parking keys, and starting with another size."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import (
    Awaitable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from time import monotonic, time
from typing import Any, TypeVar
from uuid import uuid4

from distributed.comm.core import CommClosedError
from distributed.core import Status

from clustertune.core.wording import plural
from clustertune.remote.ending import end_tasks, within
from clustertune.remote.scheduler.state import PARKING_PREFIX, identity, is_only_on
from clustertune.remote.worker.park import read

logger = logging.getLogger("distributed.clustertune")

GRACE = 60.0  # seconds to undo a restart in if the time of the caller is over
ANSWER_TIMEOUT = 5.0  # seconds for the answer of a nanny, and between two questions
EXIT_TIMEOUT = 5.0  # seconds in which a worker's process ends after that of its nanny
FROZEN = 20.0  # seconds without an answer after which a process counts as frozen
NANNY_TIMEOUT = 30.0  # seconds without an answer after which a nanny counts as lost
MARK = "clustertune://restarting/"  # stands for an address, before a name
UNWANTED = ("last_seen", "metrics")  # that Dask does not send to cluster objects
POLL_INTERVAL = 0.1  # seconds between two looks at a worker
#: how to restart although keys cannot be sent
RELEASE = "Release these keys first, or lose them with drop_data=True"

T = TypeVar("T")


class Refused(Exception):  # noqa: N818
    """A worker is not restarted; its state is unchanged."""


async def call(
    scheduler: Any,
    address: str,
    function: bytes,
    arguments: Mapping[str, Any],
    seconds: float,
    *,
    answers: bool = True,
) -> tuple[Any, str]:
    """Run a pickled function on a worker or a nanny.

    Returns the answer, which only ``park.act`` has, and the problem or an empty text.
    """
    try:
        return await _request(scheduler, address, function, arguments, seconds, answers)
    except (OSError, asyncio.TimeoutError) as error:
        return None, repr(error)


async def _request(
    scheduler: Any,
    address: str,
    function: bytes,
    arguments: Mapping[str, Any],
    seconds: float,
    answers: bool = True,
) -> tuple[Any, str]:
    """Do the same as :func:`call`, but raise an error if there is no answer."""
    work = scheduler.rpc(address).run(
        function=function, kwargs=pickle.dumps(dict(arguments))
    )
    answer = await within(work, seconds)
    why = str(answer.get("exception_text", ""))
    return read(answer["result"]) if answers and not why else None, why


async def answers(
    scheduler: Any, address: str, seconds: float = ANSWER_TIMEOUT
) -> bool:
    """Whether a worker or a nanny answers."""
    try:
        await within(scheduler.rpc(address).identity(), seconds)
    except (OSError, asyncio.TimeoutError):
        return False
    return True


async def silence(scheduler: Any, worker: Any) -> str:
    """Return why the keys of a frozen process cannot be moved; "": it answers."""
    if await answers(scheduler, worker.address, FROZEN):
        return ""
    return (
        "it does not answer, so its keys cannot be moved (its last heartbeat was "
        f"{time() - worker.last_seen:.0f} s ago). Restart it without them, with "
        "drop_data=True"
    )


async def silent_nannies(scheduler: Any, nannies: Iterable[str | None]) -> str:
    """Return which nannies do not answer, and a fix; "": all answer."""
    asked = sorted({nanny for nanny in nannies if nanny})
    found = await asyncio.gather(*(answers(scheduler, n, FROZEN) for n in asked))
    silent = [n for n, there in zip(asked, found, strict=True) if not there]
    if not silent:
        return ""
    names = f"its nanny {silent[0]} does"
    if len(silent) > 1:
        names = f"{len(silent)} nannies, such as {silent[0]}, do"
    return f"{names} not answer, so its worker cannot restart: continue its process"


class NannyWatch:
    """Notices a nanny that has not answered for ``NANNY_TIMEOUT`` seconds."""

    def __init__(self, scheduler: Any, nanny: str):
        self.scheduler = scheduler
        self.nanny = nanny
        self.answered = self.requested = monotonic()

    async def is_silent(self) -> bool:
        """Whether it is silent; it is asked every ``ANSWER_TIMEOUT`` seconds."""
        if monotonic() - self.requested > ANSWER_TIMEOUT:
            self.requested = monotonic()
            if await answers(self.scheduler, self.nanny):
                self.answered = monotonic()
        return monotonic() - self.answered > NANNY_TIMEOUT

    async def during(self, work: Awaitable[T]) -> T:
        """Wait for the answer to a request; raise ``OSError`` if it is silent."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=ANSWER_TIMEOUT))[0]:
                if await self.is_silent():
                    text = f"its nanny {self.nanny} does not answer"
                    raise asyncio.TimeoutError(text)
        finally:
            await end_tasks(task)
        return task.result()


async def end_process(scheduler: Any, address: str) -> str:
    """Have a nanny restart its worker; return its answer, or the error.

    Dask removes a worker whose nanny does not answer in time, and its nanny ends with
    it. So the caller's time does not limit this request.
    """
    try:
        found = await scheduler.restart_workers(
            [address],
            timeout=NANNY_TIMEOUT,  # for the end of the process only
            # Dask counts workers, and other workers may leave or join meanwhile
            wait_for_workers=False,
            on_error="return",
            stimulus_id=f"clustertune-restart-{time()}",
        )
    except asyncio.TimeoutError:
        return "timed out"
    # the worker may return even if Dask raises an error of its nanny
    except Exception as error:  # noqa: BLE001, the caller reports it
        return repr(error)
    return str(found.get(address, ""))


async def wait_for_end(scheduler: Any, worker: Any) -> None:
    """Wait until a worker ends after its nanny, so that its lost keys count."""
    end = monotonic() + EXIT_TIMEOUT
    while monotonic() < end:
        if scheduler.workers.get(worker.address) is not worker:
            return
        await asyncio.sleep(POLL_INTERVAL)


@contextmanager
def expecting(scheduler: Any, workers: Iterable[Any]) -> Iterator[None]:
    """Keep a cluster object from removing these workers while they restart.

    The object removes a worker and closes its nanny if the worker is still missing
    after ``distributed.deploy.lost-worker-timeout`` (15 s). A restart may take longer,
    or begin when an earlier timeout ends. So the object gets an entry of the same name.
    """
    observer = scheduler.plugins.get("worker-status")
    entries = {}
    for ws in () if observer is None else workers:
        entry = {k: v for k, v in ws.identity().items() if k not in UNWANTED}
        entries[f"{MARK}{ws.name}"] = entry
    if entries:
        _send(observer, ["add", {"workers": entries}])
    try:
        yield
    finally:
        if entries and scheduler.plugins.get("worker-status") is observer:
            # The object fails if it removes what it does not know, and its
            # wait_for_workers replaces what it knows. Both messages arrive together.
            _send(
                observer,
                ["add", {"workers": entries}],
                *(["remove", m] for m in entries),
            )


def _send(observer: Any, *messages: list[Any]) -> None:
    with suppress(CommClosedError):  # the cluster object is gone
        observer.bcomm.send(*messages)


def set_status(scheduler: Any, worker: Any, status: Status) -> None:
    """Change a worker's status on the scheduler only.

    A worker that learned of it would not end its tasks.
    """
    name = f"clustertune-restart-{time()}"
    scheduler.handle_worker_status_change(status, worker, name)


class Parking:
    """The worker that keeps the keys during one restart.

    It is the former process of the restarted worker, or a parking worker. ``code`` is
    the pickled ``park.act``. ``allowed``: the restart may use such a worker.
    """

    def __init__(self, scheduler: Any, code: bytes, allowed: bool = True):
        self.scheduler = scheduler
        self.code = code
        self.allowed = allowed
        self.worker: Any = None
        self.nanny = ""  # of a former process

    def is_open(self) -> bool:
        """Whether the parking worker is still registered."""
        worker = self.worker
        return worker is not None and (
            self.scheduler.workers.get(worker.address) is worker
        )

    def may_open(self) -> bool:
        return self.allowed and bool(self.code) and self.worker is None

    async def open(self, nanny: str, nbytes: int, seconds: float) -> str:
        """Open a parking worker in a nanny; return a problem or nothing.

        If it comes too late, it closes by itself.
        """
        name = f"{PARKING_PREFIX}{uuid4().hex[:8]}"
        wanted = {"what": "open", "name": name, "nbytes": nbytes, "timeout": seconds}
        opening = call(self.scheduler, nanny, self.code, wanted, seconds)
        try:
            _, why = await NannyWatch(self.scheduler, nanny).during(opening)
        except asyncio.TimeoutError as error:
            why = str(error)
        self.worker = self.scheduler.workers.get(self.scheduler.aliases.get(name))
        if self.worker is None:
            return f"its nanny opened no parking worker: {why or 'it did not register'}"
        return ""

    async def replace(
        self, worker: Any, nbytes: int, seconds: float
    ) -> tuple[str, str]:
        """Start the next process of a worker; the former one keeps its keys.

        Return why the nanny cannot run two processes, and why the next one did not
        start; nothing has changed then. The former process gets the name of a parking
        worker, because names are unique.
        """
        name, nanny, who = worker.name, worker.nanny, identity(worker)
        self._rename(worker, f"{PARKING_PREFIX}{uuid4().hex[:8]}")
        wanted = {"what": "replace", "nbytes": nbytes, "timeout": seconds}
        obstacle, failure, answered = "", "cancelled", False
        try:
            # the nanny decides whether the time is over
            work = _request(self.scheduler, nanny, self.code, wanted, seconds + GRACE)
            obstacle, failure = await NannyWatch(self.scheduler, nanny).during(work)
            answered = True
        except (OSError, asyncio.TimeoutError) as error:
            failure = str(error) or repr(error)
        finally:
            # without an answer, the next process may run
            others = (w for w in self.scheduler.workers.values() if w is not worker)
            runs = any(identity(w) == who for w in others)
            if answered:
                runs = not (obstacle or failure)
            if runs:
                self.worker, self.nanny, worker.nanny = worker, nanny, None
            else:
                await self._rename_back(worker, name)
        if self.worker is None:
            return obstacle or "", failure
        if not self.is_open():
            return "", ""
        _, lost = await self._act(worker.address, "detach", ANSWER_TIMEOUT)
        if lost:
            logger.warning("clustertune: a former process did not answer: %s", lost)
        if self.is_open():  # it may have reported that it runs
            set_status(self.scheduler, worker, Status.closing_gracefully)
        return "", ""

    async def _rename_back(self, worker: Any, name: Any) -> None:
        """Restore the name of a worker once its failed next process has left."""
        end = monotonic() + GRACE
        while monotonic() < end:
            if name not in self.scheduler.aliases:
                self._rename(worker, name)
                return
            await asyncio.sleep(POLL_INTERVAL)

    def _rename(self, worker: Any, name: Any) -> None:
        """Change the name of a registered worker on the scheduler."""
        aliases = self.scheduler.aliases
        if aliases.get(worker.name) == worker.address:
            del aliases[worker.name]
            worker.name = name
            aliases[name] = worker.address

    async def spilled_files(self, worker: Any) -> list[Any]:
        """Files of a worker's spilled keys; none if the worker does not answer."""
        files, _ = await self._act(worker.address, "spilled", ANSWER_TIMEOUT)
        return list(files or ())

    async def adopt(self, worker: Any, files: Sequence[Any]) -> list[Any]:
        """Have a worker on the same host take over files; return its new keys."""
        if not files:
            return []
        taken, why = await self._act(worker.address, "adopt", GRACE, files=files)
        if why:
            logger.warning("clustertune: keys are read, as links failed: %s", why)
        if taken and self.scheduler.workers.get(worker.address) is worker:
            self.scheduler.add_keys(worker=worker.address, keys=taken)
        return list(taken or ())

    async def unsendable(
        self, worker: Any, keys: Iterable[Any] | None = None
    ) -> list[Any]:
        """Return unsendable keys of a worker; none if it does not answer in time."""
        if not self.code:
            return []
        named = None if keys is None else list(keys)
        found, why = await self._act(worker.address, "unsendable", GRACE, keys=named)
        if why:
            logger.warning("clustertune: keys were not tested: %s", why)
        return list(found or ())

    async def _act(
        self, address: str, what: str, seconds: float, **arguments: Any
    ) -> tuple[Any, str]:
        """Have a worker or a nanny do one step of ``park.act``."""
        wanted = {"what": what, **arguments}
        return await call(self.scheduler, address, self.code, wanted, seconds)

    def alone(self, lost: Container[Any] = (), process: Any = None) -> int:
        """Count the keys that only the parking worker has, except ``lost`` ones.

        The worker's new ``process`` counts as another holder in any state.
        """
        held = self.worker.has_what if self.is_open() else ()
        scheduler, worker = self.scheduler, self.worker
        return sum(
            ts.key not in lost and is_only_on(ts, worker, scheduler, process)
            for ts in held
        )

    async def close(
        self,
        unsendable: str = "",
        lost: Container[Any] = (),
        process: Any = None,
        *,
        at_once: bool = False,
    ) -> str:
        """Close the parking worker; if it has the only copy of keys, report that.

        ``unsendable`` names those keys if they cannot be sent. ``lost`` keys may be
        lost with it, and ``process`` is the worker's new one. ``at_once``: a former
        process does not wait for its tasks.
        """
        if not self.is_open():
            return ""
        alone = self.alone(lost, process)
        kind = "its former process" if self.nanny else "the parking worker"
        verb = "is" if alone == 1 else "are"
        where = f"{plural(alone, 'key')} {verb} still on {kind} {self.worker.name}"
        if alone and unsendable:
            return f"{where}, because they cannot be sent: {unsendable}. {RELEASE}"
        if alone and self.nanny:
            return f"{where}: restart again to move them to running workers"
        if alone:
            return f"{where}: restart again once its worker runs, to bring them back"
        if self.nanny:
            _, why = await self._act(self.nanny, "end", GRACE, at_once=at_once)
            if why:
                logger.warning("clustertune: a former process may stay: %s", why)
        await self.scheduler.remove_worker(
            self.worker.address,
            stimulus_id=f"clustertune-unpark-{time()}",
            expected=True,
            # its nanny ends a former process, which may close the nanny otherwise
            close=not self.nanny,
        )
        return ""


class Resizing:
    """Has a nanny start its worker with another size, or undoes that.

    ``terms`` has the pickled functions ``change`` and ``settle`` of
    ``worker/process.py``, and the arguments ``wanted`` of the first. A worker with a
    lower limit may have ``line`` bytes of process memory with all its keys, and
    ``most`` while they return; 0: any.
    """

    def __init__(self, scheduler: Any, terms: Mapping[str, Any]):
        self.scheduler = scheduler
        self.functions = terms["change"], terms["settle"]
        self.wanted = dict(terms["wanted"])
        self.line, self.most = int(terms["line"]), int(terms["most"])
        self.changed = False  # the nanny has the size, and it may still be undone
        self.kept = False  # the worker has the size

    async def change(self, nanny: str) -> str:
        """Have the nanny start the next process with the size; return a problem."""
        self.changed = True  # also if the answer is lost
        return await self._run(nanny, self.functions[0], self.wanted)

    async def settle(self, nanny: str, *, keep: bool) -> str:
        """Have the nanny keep the size, or undo it; return a problem or nothing."""
        self.changed = False
        problem = await self._run(nanny, self.functions[1], {"keep": keep})
        return f"its nanny did not settle its size: {problem}" if problem else ""

    async def undo(self, nanny: str) -> None:
        """Have the nanny start its worker as before, unless the size is settled."""
        if self.changed:
            problem = await self.settle(nanny, keep=False)
            if problem:
                logger.warning("clustertune: %s", problem)
            self.most = 0

    async def _run(
        self, nanny: str, function: bytes, arguments: Mapping[str, Any]
    ) -> str:
        scheduler = self.scheduler
        _, why = await call(scheduler, nanny, function, arguments, GRACE, answers=False)
        return why

    def shortage(self, worker: Any, nbytes: int) -> str:
        """Why a new process is too small for keys of so many bytes, or nothing."""
        process = worker.memory.process
        if not self.line or process + nbytes <= self.line:
            return ""
        return (
            f"its new process had {process:,} bytes and gets back {nbytes:,}, and it "
            f"spills or pauses above {self.line:,}"
        )
