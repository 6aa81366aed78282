"""Clusters in the process of the test, with time for machines that are slow or busy."""

from __future__ import annotations

from functools import partial

from distributed import utils_test

#: workers with one thread each
ONE = [("127.0.0.1", 1)]
TWO = ONE * 2
THREE = ONE * 3
#: distributed gives a test 30 s and its connections 1 s to end; a busy machine needs
#: more than that for the first import of a library alone
gen_test = partial(utils_test.gen_test, timeout=250)
gen_cluster = partial(utils_test.gen_cluster, timeout=250, active_rpc_timeout=30)
