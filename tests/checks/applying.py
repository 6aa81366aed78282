"""Applies remedies of findings as a user would: paste the code that they print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dask
import distributed
import numpy as np
from distributed import Client

import clustertune
from clustertune.core.model import Finding, Severity

DATA = ("X", "y", "sample_weight", "qid", "eval_set")


class Situation:
    """A client, the variables of a user, and the options of their check."""

    def __init__(
        self, client: Client, names: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.client, self.options = client, options
        self.names = {
            "client": client,
            "clustertune": clustertune,
            "dask": dask,
            "distributed": distributed,
            "numpy": np,
            **(names or {}),
        }

    def found(self, name: str, **data: Any) -> list[Finding]:
        """Return the findings of a check now; unknown ones are none."""
        data = {k: self.names[k] for k in DATA if k in self.names} | data
        report = clustertune.check(self.client, **data, **self.options)
        found = [f for f in report.found if f.check == name]
        return [f for f in found if f.severity is not Severity.unknown]

    def apply(self, name: str, line: int = 0) -> None:
        """Run a line of the remedy of the first finding."""
        finding, *_ = self.found(name)
        exec(code(finding.remedy)[line], self.names)


def code(remedy: str) -> list[str]:
    """Return the code in a remedy."""
    return re.findall("`([^`]*)`", remedy)
