"""Playbooks: what they may say, and how one is carried out."""
