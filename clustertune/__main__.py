"""``python -m clustertune``, and the script ``clustertune``."""

import os
import signal


def main() -> None:
    """Run the command line; ^C ends it without a traceback, also during the imports."""
    # a shell has the jobs of a script that run in the background ignore ^C
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored:
        signal.signal(signal.SIGINT, _interrupted)
    from clustertune.cli import main as run

    if not ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run(prog_name="clustertune")


def _interrupted(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
