"""Playbooks: steps for a cluster, read from a YAML file and carried out in order."""
