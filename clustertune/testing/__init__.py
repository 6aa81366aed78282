"""Test utilities: a cluster in memory, and builders of what checks and planner read."""

from clustertune.testing.builders import collection as collection
from clustertune.testing.builders import details as details
from clustertune.testing.builders import layout as layout
from clustertune.testing.builders import prefix as prefix
from clustertune.testing.builders import runs as runs
from clustertune.testing.builders import snapshot as snapshot
from clustertune.testing.builders import survey as survey
from clustertune.testing.builders import view as view
from clustertune.testing.builders import worker as worker
from clustertune.testing.memory_cluster import MemoryCluster as MemoryCluster
from clustertune.testing.memory_cluster import verify as verify
