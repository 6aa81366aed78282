"""Chaos, soak and fuzz: what nobody thought of, drawn from seeds.

``python -m tests.chaos --help``. A short form of each runs with the other tests.
"""
