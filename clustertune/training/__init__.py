"""Patterns for training code itself, on a cluster that is ready for it."""

from clustertune.training.reduction import map_reduce as map_reduce
from clustertune.training.roles import run_roles as run_roles
from clustertune.training.running import Roles as Roles
from clustertune.training.searching import joblib_backend as joblib_backend
