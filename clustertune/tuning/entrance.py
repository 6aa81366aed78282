"""Validate what every public call depends on: settings, the client, its data."""

from __future__ import annotations

import os
from typing import Any

from clustertune import checks, settings
from clustertune.data import inputs
from clustertune.data.inputs import Inputs
from clustertune.past import settings as history


def refuse_wrong_settings() -> None:
    """Check all settings, and the environment variables that set some.

    Raises
    ------
    ValueError
        A setting does not exist or has a wrong value, or a variable is misspelt.
    """
    settings.refuse_unknown(checks.all_settings())
    try:
        checks.configured()
        history.configured()
    except ValueError as error:
        for name in os.environ:
            # as Dask makes a setting of the variable
            path = name[5:].lower().replace("__", ".")
            if settings.is_ours(name) and path in str(error):
                raise ValueError(f"{error}; {name} sets it") from error
        raise


def check_client(client: Any, given: Inputs = inputs.NOTHING) -> None:
    """Refuse wrong settings, a closed client, and data of another cluster.

    Raises
    ------
    TypeError, ConnectionLostError, ValueError, AlignmentError
        As :func:`clustertune.data.inputs.check_client` raises them.
    """
    refuse_wrong_settings()
    inputs.check_client(client, given)
