"""Patterns for training code on a prepared cluster."""

from clustertune.training.joblib_fits import joblib_backend as joblib_backend
from clustertune.training.reduction import map_reduce as map_reduce
from clustertune.training.roles import run_roles as run_roles
from clustertune.training.running_roles import Roles as Roles
