"""Any library that trains piece by piece and copies its data once.

It is taken where neither an estimator nor a workload is named.
"""

from __future__ import annotations

from clustertune.profiles import Profile

PROFILE = Profile(
    name="generic",
    title="any training library",
    memory_multiple={4: 2.0, 8: 2.0},
    source="the data and one copy of it",
)
