"""What is told of an error of the user's code, which arose in another process."""

from __future__ import annotations

from traceback import extract_tb

from distributed.protocol import pickle


def where(error: BaseException) -> str:
    """File and line of the innermost call."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def sendable(error: BaseException) -> BaseException:
    """The error, or one that says the same where it does not pickle there and back."""
    try:
        pickle.loads(pickle.dumps(error))
    # whatever a class of somebody's does when it is pickled
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
