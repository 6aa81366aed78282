"""Random tests from seeds: faults in simulated and real clusters, a soak, and fuzzing.

``python -m tests.chaos --help`` lists the commands. A short form runs with the tests.
"""
