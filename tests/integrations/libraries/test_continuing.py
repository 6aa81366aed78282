"""A training that continues from a checkpoint equals one that was never interrupted.

Models are trained in this process, so the reports of rank 0 go to a list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from clustertune.integrations.libraries import lightgbm as our_lightgbm
from clustertune.integrations.libraries import xgboost as our_xgboost
from clustertune.integrations.libraries.boosting import Checkpoint, shifted_seed
from clustertune.integrations.libraries.workload import assign, parameters
from clustertune.remote.worker.rounds import Reports

RANDOM = np.random.default_rng(0)
X, V = RANDOM.random((600, 6)), RANDOM.random((300, 6))
NOISE = RANDOM.normal(0, 0.6, 900)


def labels(values: Any, noise: Any) -> Any:
    signal = values[:, 0] + values[:, 1] * values[:, 2] + noise
    return np.digitize(signal, [0.5, 1.0])


Y, W = labels(X, NOISE[:600]), labels(V, NOISE[600:])


class Collected(Reports):
    """Keeps the last checkpoint up to a round."""

    def __init__(self, at: int):
        super().__init__("name", None, 1.0)
        self.at = at
        self.kept: tuple[int, bytes, Any] | None = None

    def note(self, done: int, metric: Callable[[], str], save: Any) -> None:
        assert metric()
        if done <= self.at:
            self.kept = (done, *save())


class Here:
    """Callbacks of tasks in this process."""

    def __init__(self, module: Any, at: int = 0):
        self.module = module
        self.reports: Any = Collected(at)

    def rounds(self, history: Any) -> Any:
        return self.module.Rounds(self.reports, history)

    def continued(self, inner: Any, *arguments: Any) -> Any:
        return self.module.Continued(inner, *arguments)


def here(continuation: Any, at: int = 0) -> Here:
    name = f"clustertune.remote.worker.{continuation.callbacks}"
    return Here(importlib.import_module(name), at)


def trained(
    model: Any,
    continuation: Any,
    checkpoint: Checkpoint | None = None,
    tools: Here | None = None,
    **own: Any,
) -> Any:
    """Train as one attempt of ``fit`` does."""
    tools = tools or here(continuation)
    attempt = continuation.attempt(model, own, tools, checkpoint)
    former = assign(model, attempt.attributes)
    model.fit(X, Y, **sets(model), **{**own, **attempt.fit_kwargs})
    assign(model, former)
    if checkpoint is not None:
        continuation.finish(model, checkpoint)
    return model


def sets(model: Any) -> dict[str, Any]:
    """The eval set as arguments; LightGBM 4.7 separates X and y."""
    if "eval_X" in parameters(model.fit):
        return {"eval_X": (V,), "eval_y": (W,)}
    return {"eval_set": [(V, W)]}


def both(make: Callable[[], Any], continuation: Any, at: int, **own: Any) -> Any:
    """Return a model of an uninterrupted training, and a continued one."""
    tools = here(continuation, at)
    whole = trained(make(), continuation, tools=tools, **own)
    assert tools.reports.kept is not None
    done, model, history = tools.reports.kept
    saved = Checkpoint(rounds=done, model=model, history=history)
    return whole, trained(make(), continuation, saved, **own)


# --- XGBoost --------------------------------------------------------------------------


def xgb(**params: Any) -> xgboost.XGBClassifier:
    defaults = {"n_estimators": 60, "learning_rate": 0.4, "max_depth": 3, "n_jobs": 1}
    return xgboost.XGBClassifier(**{**defaults, "verbosity": 0, **params})


def check_xgboost(whole: Any, continued: Any) -> None:
    a, b = whole.get_booster(), continued.get_booster()
    assert a.get_dump() == b.get_dump()
    assert whole.evals_result() == continued.evals_result()
    assert whole.get_params() == continued.get_params()


@pytest.mark.parametrize("method", ["hist", "approx"])
@pytest.mark.parametrize("metric", ["mlogloss", ["merror", "mlogloss"]])
def test_xgboost_continues(method: str, metric: Any) -> None:
    """Trees, scores and parameters are those of an uninterrupted training."""

    def make() -> Any:
        return xgb(tree_method=method, eval_metric=metric)

    check_xgboost(*both(make, our_xgboost.Boosting(), 20, verbose=False))


END = 10**6  # a round after the last


@pytest.mark.parametrize("late", [False, True])
def test_xgboost_stops_at_the_same_round(late: bool) -> None:
    """Early stopping knows the best round before the break, and its patience."""

    def make() -> Any:
        return xgb(n_estimators=200, eval_metric="mlogloss", early_stopping_rounds=8)

    whole = trained(make(), our_xgboost.Boosting(), verbose=False)
    assert whole.best_iteration < 190
    # the break comes after the best round, so only a replay knows it
    at = END if late else whole.best_iteration + 4
    whole, continued = both(make, our_xgboost.Boosting(), at, verbose=False)
    check_xgboost(whole, continued)
    assert whole.best_iteration == continued.best_iteration
    assert whole.best_score == continued.best_score


def test_callbacks_of_the_user_see_all_rounds() -> None:
    """They get the numbers of rounds and the scores of the whole training."""
    began: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []

    class Own(xgboost.callback.TrainingCallback):
        def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch:
                began.append((epoch, len(evals_log["validation_0"]["mlogloss"])))
            return False

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            seen.append((epoch, len(evals_log["validation_0"]["mlogloss"])))
            return False

    def make() -> Any:
        rates = xgboost.callback.LearningRateScheduler(lambda i: 0.5 * 0.95**i)
        return xgb(callbacks=[Own(), rates])

    check_xgboost(*map(without_callbacks, both(make, our_xgboost.Boosting(), 20)))
    expected = [(i, i + 1) for i in range(60)]
    assert seen == expected + expected[20:]
    expected = [(i, i) for i in range(1, 60)]
    assert began == expected + expected[19:]


def test_checkpoints_of_xgboost_are_refused(tmp_path: Path) -> None:
    """Another attempt counts its rounds from 0, and their names would be wrong."""
    refusal = our_xgboost.Boosting().refusal
    saves = xgboost.callback.TrainingCheckPoint(tmp_path)
    assert "give checkpoint_path=" in refusal(xgb(callbacks=[saves]))
    rates = xgboost.callback.LearningRateScheduler(lambda i: 0.5 * 0.95**i)
    assert refusal(xgb(callbacks=[rates])) == refusal(xgb()) == ""


def without_callbacks(model: Any) -> Any:
    model.callbacks = None
    return model


def test_a_model_of_the_user_is_continued() -> None:
    """The rounds of ``xgb_model`` are not trained again."""
    first = xgb(n_estimators=10).fit(X, Y, verbose=False).get_booster()
    whole, continued = both(xgb, our_xgboost.Boosting(), 30, xgb_model=first)
    check_xgboost(whole, continued)
    assert whole.get_booster().num_boosted_rounds() == 70


def test_a_model_in_a_file_is_continued(tmp_path: Path) -> None:
    """Its rounds count as those of a model in memory."""
    file = str(tmp_path / "first.ubj")
    xgb(n_estimators=10).fit(X, Y, verbose=False).save_model(file)
    whole, continued = both(xgb, our_xgboost.Boosting(), 30, xgb_model=file)
    check_xgboost(whole, continued)
    assert whole.get_booster().num_boosted_rounds() == 70
    other = str(tmp_path / "first.txt")
    lgbm(n_estimators=10).fit(X, Y).booster_.save_model(other)
    assert our_lightgbm.Boosting().rounds(lgbm(), {"init_model": other}) == 50


def test_random_draws_continue() -> None:
    """A seed of XGBoost that is shifted draws for round i what round i + n drew."""
    seed, done = 7, 1234
    shifted = shifted_seed(seed, done)
    for i in range(5):
        assert (shifted * 127 + i) % 2**32 == (seed * 127 + i + done) % 2**32
    continuation = our_xgboost.Boosting()
    assert continuation.difference(xgb()) == ""
    assert "colsample_bytree" in continuation.difference(xgb(colsample_bytree=0.5))


@pytest.mark.parametrize("name", ["random_state", "seed"])
def test_draws_with_a_seed_are_continued(name: str) -> None:
    """A resumed round draws the rows that an uninterrupted training draws."""
    params = {"subsample": 0.5, "tree_method": "exact", name: 7}
    params["seed_per_iteration"] = True  # as in a distributed training
    check_xgboost(*both(lambda: xgb(**params), our_xgboost.Boosting(), 20))


def test_a_generator_stays() -> None:
    """XGBoost shows a number that it draws as the parameter."""
    generator = np.random.RandomState(0)
    params = {"subsample": 0.5, "random_state": generator}
    _, continued = both(lambda: xgb(**params), our_xgboost.Boosting(), 20)
    assert continued.random_state is generator


RANDOM_STATE = np.random.RandomState(0)


@pytest.mark.parametrize(
    ("params", "again", "continued"),
    [
        ({}, "", ""),
        ({"random_state": RANDOM_STATE}, "", ""),
        ({"subsample": 0.5}, "", "subsample= draws at random, and its draws"),
        (
            {"subsample": 0.5, "random_state": RANDOM_STATE},
            "random_state= has no fixed seed",
            "random_state= has no fixed seed",
        ),
        ({"booster": "dart"}, "", ""),
        ({"booster": "dart", "rate_drop": 0.1}, "", "rate_drop= draws"),
        ({"booster": "dart", "one_drop": True}, "", "one_drop= draws"),
        ({"booster": "gblinear"}, "shotgun", "shotgun"),
        ({"booster": "gblinear", "updater": "coord_descent"}, "", ""),
        (
            {"booster": "gblinear", "updater": "coord_descent", "subsample": 0.5},
            "",
            "",
        ),
        ({"feature_selector": "random"}, "", ""),
        (
            {
                "booster": "gblinear",
                "updater": "coord_descent",
                "feature_selector": "random",
            },
            "",
            "feature_selector= draws",
        ),
        ({"lambdarank_pair_method": "mean"}, "", "lambdarank_pair_method= draws"),
        ({"lambdarank_unbiased": True}, "", "lambdarank_unbiased= begins"),
    ],
)
def test_what_xgboost_cannot_repeat(
    params: dict[str, Any], again: str, continued: str
) -> None:
    """A training that begins again may differ too, if its seed is another one."""
    difference = our_xgboost.Boosting().difference
    for text, found in (
        (again, difference(xgb(**params), continued=False)),
        (continued, difference(xgb(**params))),
    ):
        assert text in found
        assert bool(text) == bool(found)


@pytest.mark.parametrize(
    "params",
    [
        {"booster": "dart", "seed": 1},
        {"booster": "gblinear", "updater": "coord_descent"},
    ],
)
def test_other_boosters_of_xgboost_continue(params: dict[str, Any]) -> None:
    """Without random draws the model is that of a training without a break."""
    check_xgboost(*both(lambda: xgb(**params), our_xgboost.Boosting(), 20))


def test_seeds_of_numpy_are_shifted() -> None:
    """An integer of NumPy is a seed as one of Python is."""
    seed = np.int64(7)
    assert shifted_seed(seed, 3) == shifted_seed(7, 3)
    tools, saved = here(our_lightgbm.Boosting(), 5), lgbm().fit(X, Y).booster_
    model = saved.model_to_string(num_iteration=5).encode()
    checkpoint = Checkpoint(rounds=5, model=model, history=[])
    for name, given in [("random_state", 7), ("random_state", seed), ("seed", 7)]:
        seeded = lgbm(**{name: given})
        attempt = our_lightgbm.Boosting().attempt(seeded, {}, tools, checkpoint)
        assert attempt.attributes[name] == 12


# --- LightGBM -------------------------------------------------------------------------


def lgbm(**params: Any) -> lightgbm.LGBMClassifier:
    defaults = {"n_estimators": 40, "learning_rate": 0.3, "n_jobs": 1, "verbose": -1}
    return lightgbm.LGBMClassifier(**{**defaults, **params})


def trees(model: Any) -> list[str]:
    text = model.booster_.model_to_string(num_iteration=-1)
    return [tree.split("\n\n")[0] for tree in text.split("\nTree=")[1:]]


def check_lightgbm(whole: Any, continued: Any) -> None:
    assert trees(whole) == trees(continued)
    assert whole.evals_result_ == continued.evals_result_
    assert whole.get_params() == continued.get_params()
    assert whole.n_estimators_ == continued.n_estimators_


def test_lightgbm_continues() -> None:
    """Trees, scores and parameters are those of an uninterrupted training."""
    check_lightgbm(*both(lgbm, our_lightgbm.Boosting(), 15))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["early_stopping_round", "callback"])
def test_lightgbm_stops_at_the_same_round(name: str, late: bool) -> None:
    """Early stopping knows the best round before the break, and its patience."""
    own: dict[str, Any] = {}
    params: dict[str, Any] = {"n_estimators": 200}
    if name == "callback":
        own = {"callbacks": [lightgbm.early_stopping(8, verbose=False)]}
    else:
        params[name] = 8
    first = lgbm(**params).fit(X, Y, **sets(lgbm()), **own)
    assert first.best_iteration_ + 4 < 190
    at = END if late else first.best_iteration_ + 4

    def make() -> Any:
        return lgbm(**params)

    whole, continued = both(make, our_lightgbm.Boosting(), at, **own)
    check_lightgbm(whole, continued)
    assert first.best_iteration_ == whole.best_iteration_ == continued.best_iteration_


def test_a_list_of_learning_rates() -> None:
    """A callback with a value for each round has as many as the whole training."""
    rates = [0.3 * 0.97**i for i in range(40)]
    own = {"callbacks": [lightgbm.reset_parameter(learning_rate=rates)]}
    check_lightgbm(*both(lgbm, our_lightgbm.Boosting(), 15, **own))


@pytest.mark.parametrize("kind", ["dart", "rf"])
def test_what_lightgbm_cannot_continue(kind: str) -> None:
    """The reason names the boosting type and another one."""
    why = our_lightgbm.Boosting().refusal(lgbm(boosting_type=kind))
    assert kind in why
    assert "gbdt" in why
    assert our_lightgbm.Boosting().refusal(lgbm()) == ""


@pytest.mark.parametrize("continued", [True, False])
def test_what_lightgbm_cannot_repeat(continued: bool) -> None:
    """It never promises the same trees after workers have changed."""
    difference = our_lightgbm.Boosting().difference
    for params in ({}, {"feature_fraction": 0.5}):
        why = difference(lgbm(**params), continued=continued)
        assert "order of its workers" in why


def test_init_score_is_not_continued() -> None:
    """LightGBM would replace it by the predictions of the checkpoint."""
    why = our_lightgbm.Boosting().refusal(lgbm(), ["sample_weight", "init_score"])
    assert "max_failures=0" in why
    assert our_lightgbm.Boosting().refusal(lgbm(), ["sample_weight"]) == ""


@pytest.mark.parametrize("name", ["num_iterations", "max_iter"])
def test_another_name_of_the_rounds(name: str) -> None:
    """A continued training has as many trees, whatever the parameter is called."""
    check_lightgbm(*both(lambda: lgbm(**{name: 30}), our_lightgbm.Boosting(), 20))


def test_parameters_that_were_set_are_changed() -> None:
    """LightGBM's ``set_params`` keeps values that replace attributes."""
    model = lightgbm.DaskLGBMRegressor(random_state=7)
    model.set_params(n_estimators=500, random_state=8)
    former = assign(model, {"n_estimators": 100, "random_state": 408})
    assert former == {"n_estimators": 500, "random_state": 8}
    for params in former, {"n_estimators": 100, "random_state": 408}:
        assign(model, params)
        assert params.items() <= model.get_params().items()
        assert model.n_estimators == params["n_estimators"]


# --- after a model of the user --------------------------------------------------------


def test_xgboost_stops_early_after_a_model_of_the_user() -> None:
    """The best round counts from the first round of ``xgb_model``."""
    first = xgb(n_estimators=5, learning_rate=0.05).fit(X, Y, verbose=False)
    base = first.get_booster()

    def make() -> Any:
        return xgb(n_estimators=200, eval_metric="mlogloss", early_stopping_rounds=8)

    own = {"xgb_model": base, "verbose": False}
    best = make().fit(X, Y, **sets(make()), **own).best_iteration
    whole, continued = both(make, our_xgboost.Boosting(), best + 4, **own)
    check_xgboost(whole, continued)
    assert whole.best_iteration == continued.best_iteration == best


def test_lightgbm_stops_early_after_a_model_of_the_user() -> None:
    """So it does after ``init_model``, and a list of rates has its length."""
    base = lgbm(n_estimators=5, learning_rate=0.05).fit(X, Y).booster_

    def make() -> Any:
        return lgbm(n_estimators=200, early_stopping_round=8)

    rates = [0.3 * 0.97**i for i in range(200)]
    callback = lightgbm.reset_parameter(learning_rate=rates)
    own = {"init_model": base, "callbacks": [callback]}
    first = make().fit(X, Y, **sets(make()), **own)
    assert 5 < first.best_iteration_ < 190
    at = first.best_iteration_ + 4
    whole, continued = both(make, our_lightgbm.Boosting(), at, **own)
    check_lightgbm(whole, continued)
    assert first.best_iteration_ == continued.best_iteration_


# --- when a checkpoint is due ---------------------------------------------------------


@pytest.mark.parametrize("uptime", [600.0, 10.0**7])
def test_checkpoints_do_not_depend_on_the_clock_of_the_client(
    uptime: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monotonic time begins with the start of each host."""
    clock = Reports.note.__globals__
    monkeypatch.setitem(clock, "monotonic", lambda: 10.0**5)
    reports = Reports("name", None, 30.0)
    sent: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> None:
        sent.append(message)
        reports.pending = Future()
        reports.pending.set_result({"result": {}})

    monkeypatch.setattr(reports, "_send", send)
    for seconds in (1, 20, 32, 40, 63):
        monkeypatch.setitem(clock, "monotonic", lambda s=seconds: uptime + s)
        reports.note(seconds, lambda: "", lambda: (b"", None))
    assert [m["round"] for m in sent if "model" in m] == [32, 63]


# --- reports that fail ----------------------------------------------------------------


class Failing(Reports):
    """Reports every round, and fails in one way."""

    def __init__(self, how: str):
        super().__init__("name", None, 0.0)
        self.how = how
        self.tried = 0

    def note(self, done: int, metric: Callable[[], str], save: Any) -> None:
        if self.ended:
            return
        self.tried += 1
        if self.how == "save":
            raise MemoryError
        self.pending = Future()
        if self.how == "cancelled":
            self.pending.cancel()
        elif self.how == "error":
            self.pending.set_exception(ValueError("unknown"))
        else:
            self.pending.set_result({"result": None})
        super().note(done, metric, save)


@pytest.mark.parametrize("how", ["save", "cancelled", "error", "answer"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_report_that_fails_does_not_fail_the_training(
    library: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once, and no report follows."""
    continuation = {"xgboost": our_xgboost, "lightgbm": our_lightgbm}[library]
    model = {"xgboost": xgb, "lightgbm": lgbm}[library](n_estimators=5)
    tools = here(continuation.Boosting())
    tools.reports = reports = Failing(how)
    trained(model, continuation.Boosting(), tools=tools)
    assert reports.tried == 1
    assert [r.levelname for r in caplog.records] == ["WARNING"]
