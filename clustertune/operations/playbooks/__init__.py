"""Playbooks: steps for a cluster, read from a YAML file, carried out in order."""
