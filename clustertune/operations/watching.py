"""From findings of one moment to events: what has begun, and what has ended (pure).

A condition has begun when it has held for a while, and has ended when it has been gone
for a while: memory that crosses a line for a second is no event. Whether it is gone is
asked of a view that is a little worse than the real one, so that a value close to a
line does not begin and end again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from clustertune.core.model import Finding, Severity, View

HOLD = 3.0  # seconds for which a condition must hold, or be gone
MARGIN = 0.05  # of the memory limit: how much worse the view is that tells an end

Subject = tuple[str, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A finding that has begun or ended."""

    time: float  # epoch seconds at which it was first, or last, seen
    kind: str  # "began" or "ended"
    finding: Finding

    def __str__(self) -> str:
        return f"{self.kind}: {self.finding.severity} {self.finding.message}"


@dataclass
class _Seen:
    finding: Finding
    first: float
    last: float
    begun: bool = False


@dataclass
class Watch:
    """Told of what is found at each look; says what has begun and ended."""

    hold: float = HOLD
    _seen: dict[Subject, _Seen] = field(default_factory=dict)

    def tell(
        self, now: float, found: Iterable[Finding], nearly: Iterable[Finding]
    ) -> list[Event]:
        """Take notice of one look.

        Parameters
        ----------
        now
            Epoch seconds.
        found
            What is found in the view.
        nearly
            What is found in the view that is a little worse: of what has begun, that
            is still there.
        """
        there = _told(found)
        still = there | {k: f for k, f in _told(nearly).items() if k in self._seen}
        events: list[Event] = []
        for subject, finding in still.items():
            seen = self._seen.get(subject)
            if seen is None:
                self._seen[subject] = _Seen(finding, now, now)
            elif subject in there or seen.begun:
                seen.last = now
                if subject in there:
                    seen.finding = finding
        for subject, seen in list(self._seen.items()):
            if not seen.begun and seen.last < now:
                del self._seen[subject]  # it did not hold
            elif not seen.begun and now - seen.first >= self.hold:
                seen.begun = True
                events.append(
                    Event(time=seen.first, kind="began", finding=seen.finding)
                )
            elif seen.begun and now - seen.last >= self.hold:
                events.append(Event(time=seen.last, kind="ended", finding=seen.finding))
                del self._seen[subject]
        return events

    @property
    def current(self) -> tuple[Finding, ...]:
        """What has begun and has not ended, worst first."""
        held = [s.finding for s in self._seen.values() if s.begun]
        return tuple(sorted(held, key=lambda f: -f.severity))


def _told(found: Iterable[Finding]) -> dict[Subject, Finding]:
    """By check and subject; what is unknown, or only information, is no event."""
    return {
        (f.check, f.subject): f
        for f in found
        if f.severity in (Severity.warning, Severity.critical)
    }


def worse(view: View) -> View:
    """The view with a little more memory in use on every worker."""
    now = replace(
        view.now,
        workers=tuple(
            replace(
                w,
                process=w.process + int(MARGIN * w.memory_limit),
                managed=w.managed + int(MARGIN * w.memory_limit),
                counted=w.counted + int(MARGIN * w.memory_limit),
            )
            for w in view.now.workers
        ),
    )
    return replace(view, snapshots=(*view.snapshots[:-1], now))
