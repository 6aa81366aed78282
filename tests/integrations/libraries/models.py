"""A model that records its readers; worker processes can import it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class Seen(ClassifierMixin, BaseEstimator):
    """A classifier that records in a file each process that unpickles it."""

    def __init__(self, notes: str = ""):
        self.notes = notes

    def fit(self, X: Any, y: Any) -> Seen:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> Any:
        first = np.asarray(X)[:, 0]
        return np.stack([1 - first, first], axis=1)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        with Path(self.notes).open("a") as file:
            file.write(f"{os.getpid()}\n")
