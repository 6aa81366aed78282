"""The workload is the named one, else the estimator's, else the generic one."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask_glm.estimators as dask_glm
import dask_ml.cluster
import dask_ml.ensemble
import dask_ml.linear_model as dask_linear
import dask_ml.model_selection as dask_search
import dask_ml.preprocessing
import dask_ml.wrappers
import lightgbm
import pytest
import sklearn.cluster
import sklearn.ensemble
import sklearn.linear_model
import sklearn.model_selection
import xgboost
import xgboost.dask
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from clustertune.collections import inputs
from clustertune.core.model import Profile
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows, choose
from clustertune.integrations.libraries.workload import counterpart

FILES = {p.stem: p for p in Path(libraries.__file__).parent.glob("[!_]*.py")}
SGD = sklearn.linear_model.SGDClassifier


class Mine(xgboost.dask.DaskXGBClassifier):
    """A subclass of a user."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)


ESTIMATORS = [
    (xgboost.dask.DaskXGBRegressor, "xgboost"),
    (xgboost.dask.DaskXGBRegressor(), "xgboost"),
    (xgboost.dask.DaskXGBRegressor(tree_method="hist"), "xgboost"),
    (xgboost.dask.DaskXGBRFClassifier(tree_method="auto"), "xgboost"),
    (xgboost.dask.DaskXGBRFRegressor, "xgboost"),
    (xgboost.dask.DaskXGBClassifier(tree_method="approx"), "xgboost_dmatrix"),
    (xgboost.dask.DaskXGBRFRegressor(tree_method="exact"), "xgboost_dmatrix"),
    (Mine, "xgboost"),
    (Mine(), "xgboost"),
    (Mine(tree_method="exact"), "xgboost_dmatrix"),
    (xgboost.dask.DaskXGBRanker, "xgboost_rank"),
    (xgboost.dask.DaskXGBRanker(tree_method="approx"), "xgboost_rank"),
    (lightgbm.DaskLGBMClassifier, "lightgbm"),
    (lightgbm.DaskLGBMRegressor(), "lightgbm"),
    (lightgbm.DaskLGBMRanker, "lightgbm_rank"),
    (lightgbm.DaskLGBMRanker(), "lightgbm_rank"),
    (dask_linear.LogisticRegression, "glm_admm"),
    (dask_linear.PoissonRegression(), "glm_admm"),
    (dask_linear.LogisticRegression(solver="lbfgs"), "glm"),
    (dask_linear.LinearRegression(solver="newton"), "glm"),
    (dask_glm.LogisticRegression, "glm_admm"),
    (dask_glm.PoissonRegression(solver="gradient_descent"), "glm"),
    (dask_ml.cluster.KMeans, "kmeans"),
    (dask_ml.cluster.KMeans(), "kmeans"),
    (dask_ml.wrappers.Incremental, "incremental"),
    (dask_ml.wrappers.Incremental(SGD()), "incremental"),
    (dask_ml.wrappers.ParallelPostFit, "predict"),
    (dask_ml.wrappers.ParallelPostFit(SGD()), "predict"),
    (make_pipeline(StandardScaler(), dask_linear.LinearRegression()), "glm_admm"),
    (make_pipeline(StandardScaler(), Mine(tree_method="exact")), "xgboost_dmatrix"),
    (make_pipeline(make_pipeline(dask_ml.cluster.KMeans())), "kmeans"),
]
REFUSED = [
    sklearn.model_selection.GridSearchCV(SGD(), {}),
    sklearn.model_selection.RandomizedSearchCV,
    dask_search.GridSearchCV,
    dask_search.RandomizedSearchCV(SGD(), {}),
    dask_search.IncrementalSearchCV,
    dask_search.HyperbandSearchCV(SGD(), {}),
    dask_search.SuccessiveHalvingSearchCV,
]


def name(value: Any) -> str:
    if isinstance(value, str):
        return value
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def claimed(estimator: Any) -> list[str]:
    """Return the names of all workloads that match an estimator."""
    return [
        name
        for name, workload in libraries.available().items()
        if workload.matches(estimator)
    ]


# --- the contract ---------------------------------------------------------------------


def test_every_workload_is_available() -> None:
    """Each library file contributes its workloads, in alphabetical order."""
    own = [w.profile.name for w in libraries.OWN]
    assert len(own) == len(set(own))
    assert list(libraries.available()) == sorted(own)
    for library in set(FILES) - {"workload", "boosting"}:
        module = importlib.import_module(
            f"clustertune.integrations.libraries.{library}"
        )
        assert {w.profile.name for w in module.WORKLOADS} <= set(own)


NAMES = sorted(w.profile.name for w in libraries.OWN)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_keeps_the_contract(name: str) -> None:
    """It has a profile with its name, figures and source, and a page."""
    workload = libraries.available()[name]
    profile = workload.profile
    assert profile.name == name
    assert profile.title
    assert profile.source
    summary, *rest = inspect.getdoc(workload).split("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert rest
    # the data itself is part of what a fit needs
    assert all(m >= 1 for m in profile.memory_multiple.values())
    assert profile.max_partitions_per_thread >= profile.partitions_per_thread >= 1
    assert profile.groups in {"", "together", "sorted"}
    assert profile.threads in {"", "worker", "pools"}
    assert set(profile.kinds) <= {"array", "dataframe"}
    if profile.takes is not None:
        assert set(profile.takes) <= {*inputs.COMPANIONS, "eval_set"}
        assert bool(profile.groups) == ("qid" in profile.takes)


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from outside_functions(child)


@pytest.mark.parametrize("name", sorted(FILES))
def test_workloads_are_short_and_import_no_library(name: str) -> None:
    """A library has at most 300 lines, and is imported only when it is used."""
    text = FILES[name].read_text()
    assert len(text.splitlines()) <= 300
    roots = set()
    for node in outside_functions(ast.parse(text)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(str(node.module).partition(".")[0])
    assert roots <= {*sys.stdlib_module_names, "clustertune", "dask"} - {"asyncio"}


def test_a_choice_imports_no_library() -> None:
    """Users of one library need not have the others."""
    code = """if True:
        import sys
        from clustertune.integrations import libraries
        libraries.choose("lightgbm")
        try:
            libraries.choose(object())
        except ValueError:
            heavy = {"xgboost", "lightgbm", "sklearn", "dask_ml", "dask_glm"}
            print(*heavy & set(sys.modules), "none else")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "none else"


# --- by name --------------------------------------------------------------------------


def test_neither_is_generic() -> None:
    """Without a name and an estimator the workload is the generic one."""
    assert choose(None).name == "generic"
    assert claimed(object()) == []


def test_by_name() -> None:
    """The name of a workload is enough."""
    assert choose("xgboost").name == "xgboost"


def test_a_name_does_not_tell_a_classifier() -> None:
    """Only the estimator shows whether it classifies."""
    models = ("lightgbm", lightgbm.DaskLGBMClassifier, lightgbm.DaskLGBMRegressor)
    assert [choose(m).needs_all_classes for m in models] == [None, True, False]


@pytest.mark.parametrize("name", ["xgb", "", "XGBoost"])
def test_a_name_that_is_not_known(name: Any) -> None:
    """The error has the value and the known names."""
    with pytest.raises(ValueError, match=r"no known workload; .*xgboost"):
        choose(name)


# --- by estimator ---------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "expected"), ESTIMATORS, ids=name)
def test_by_estimator(estimator: Any, expected: str) -> None:
    """An instance has its parameters, a class their defaults."""
    assert choose(estimator).name == expected
    if not isinstance(estimator, Pipeline):
        assert claimed(estimator) == [expected]


def of_dask_ml() -> list[Any]:
    """Return every estimator that dask-ml exports."""
    found: set[Any] = set()
    for info in pkgutil.walk_packages(dask_ml.__path__, "dask_ml."):
        if info.name == "dask_ml.xgboost":  # needs a package that is no more
            continue
        for kind in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(kind) and issubclass(kind, BaseEstimator):
                found.add(kind)
    public = (k for k in found if k.__module__.startswith("dask_ml."))
    own = (k for k in public if "utils" not in k.__module__ and k.__name__[0] != "_")
    return sorted(own, key=lambda k: (k.__module__, k.__name__))


#: what clustertune takes dask-ml's estimators for; for all others "generic"
TAKEN = {
    "KMeans": "kmeans",
    "LinearRegression": "glm_admm",
    "LogisticRegression": "glm_admm",
    "PoissonRegression": "glm_admm",
    "Incremental": "incremental",
    "ParallelPostFit": "predict",
    **dict.fromkeys(["DaskBaseSearchCV", "GridSearchCV", "RandomizedSearchCV"], ""),
    **dict.fromkeys(
        [
            "BaseIncrementalSearchCV",
            "HyperbandSearchCV",
            "IncrementalSearchCV",
            "InverseDecaySearchCV",
            "SuccessiveHalvingSearchCV",
        ],
        "",  # refused
    ),
}


@pytest.mark.parametrize("estimator", of_dask_ml(), ids=name)
def test_every_estimator_of_dask_ml(estimator: Any) -> None:
    """None is taken for a single-process estimator with the same name."""
    expected = TAKEN.get(estimator.__name__, "generic")
    if expected:
        assert choose(estimator).name == expected
        return
    with pytest.raises(ValueError, match="search") as error:
        choose(estimator)
    assert "one process" not in str(error.value)


def test_blockwise_voting_keeps_its_partitions() -> None:
    """It fits a model for each partition; a scaler of dask-ml does not."""
    voting = dask_ml.ensemble.BlockwiseVotingClassifier
    assert choose(voting).keeps_partitions
    assert not choose(dask_ml.preprocessing.StandardScaler()).keeps_partitions


@pytest.mark.parametrize("estimator", REFUSED, ids=name)
def test_an_estimator_that_is_refused(estimator: Any) -> None:
    """A search is recognized, and refused with an alternative."""
    with pytest.raises(ValueError, match=r"estimator=\w+SearchCV: .*; .*joblib"):
        choose(estimator)


@pytest.mark.parametrize(
    ("estimator", "there"),
    [
        (xgboost.XGBRegressor(), "xgboost.dask.DaskXGBRegressor"),
        (xgboost.XGBRFClassifier, "xgboost.dask.DaskXGBRFClassifier"),
        (lightgbm.LGBMRanker(), "lightgbm.DaskLGBMRanker"),
        (sklearn.cluster.KMeans(), "dask_ml.cluster.KMeans"),
        (
            sklearn.linear_model.LogisticRegression,
            "dask_ml.linear_model.LogisticRegression",
        ),
        (SGD, "dask_ml.wrappers.Incremental"),
        (sklearn.ensemble.RandomForestClassifier(), "dask_ml.wrappers.ParallelPostFit"),
        (make_pipeline(StandardScaler(), SGD()), "dask_ml.wrappers.Incremental"),
    ],
    ids=name,
)
def test_an_estimator_without_dask(estimator: Any, there: str) -> None:
    """A single-process estimator is refused; the error names Dask's."""
    assert claimed(estimator) == []
    with pytest.raises(ValueError, match=f"=.* in one process, .*: {there}"):
        choose(estimator)


@pytest.mark.parametrize(
    "estimator", [3, b"xgboost", xgboost.dask.DaskDMatrix, Pipeline([("a", None)])]
)
def test_an_estimator_that_is_not_known(estimator: Any) -> None:
    """The error has its class, and an alternative."""
    text = r"estimator=\w+.* is not .*its workload instead"
    with pytest.raises(ValueError, match=text):
        choose(estimator)


def test_what_counterparts_are_called() -> None:
    """The classes that errors name exist and are recognized."""
    for kind in (
        xgboost.XGBClassifier,
        xgboost.XGBRegressor,
        xgboost.XGBRanker,
        xgboost.XGBRFClassifier,
        xgboost.XGBRFRegressor,
        lightgbm.LGBMClassifier,
        lightgbm.LGBMRegressor,
        lightgbm.LGBMRanker,
        sklearn.cluster.KMeans,
        sklearn.linear_model.LogisticRegression,
        sklearn.linear_model.LinearRegression,
        sklearn.linear_model.PoissonRegressor,
    ):
        module, _, found = counterpart(kind).rpartition(".")
        assert claimed(getattr(sys.modules[module], found))


def test_torch_and_skorch() -> None:
    """PyTorch modules and skorch nets are trained with DDP."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Sequential):
        """A user's own."""

    for estimator in (Net, Net(torch.nn.Linear(2, 1)), torch.nn.Linear):
        assert claimed(estimator) == ["torch_ddp"]
    skorch = pytest.importorskip("skorch")
    assert claimed(skorch.NeuralNetClassifier(Net)) == ["torch_ddp"]
    assert claimed(skorch.NeuralNetRegressor) == ["torch_ddp"]


def test_keras() -> None:
    """A Keras model is trained with mirrored workers, also with PyTorch as backend."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    assert claimed(model) == claimed(keras.Model) == ["tf_mirrored"]


@pytest.mark.parametrize(
    ("estimator", "changes"),
    [
        (lightgbm.DaskLGBMClassifier, {"needs_all_classes": True}),
        (lightgbm.DaskLGBMRegressor, {"needs_all_classes": False}),
        (lightgbm.DaskLGBMRanker, {"needs_all_classes": False, "group_sizes": True}),
        (lightgbm.DaskLGBMRegressor(), {"stops_early": False}),
        (lightgbm.DaskLGBMRegressor(n_iter_no_change=5), {"stops_early": True}),
        (lightgbm.DaskLGBMRanker(early_stopping_round=5), {"stops_early": True}),
        (
            xgboost.dask.DaskXGBRanker(tree_method="approx"),
            {"memory_multiple": choose("xgboost_dmatrix").memory_multiple},
        ),
        (
            xgboost.dask.DaskXGBRanker,
            {"memory_multiple": choose("xgboost").memory_multiple},
        ),
    ],
    ids=name,
)
def test_parameters_count(estimator: Any, changes: dict[str, Any]) -> None:
    """The needs of an estimator may depend on its class and parameters."""
    profile = choose(estimator)
    assert {name: getattr(profile, name) for name in changes} == changes


# --- what the library takes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("generic", ["sample_weight", "qid", "init_score", "base_margin", "eval_set"]),
        ("xgboost", ["sample_weight", "base_margin", "eval_set"]),
        ("xgboost_dmatrix", ["sample_weight"]),
        ("xgboost_rank", ["qid", "base_margin", "eval_set"]),
        ("lightgbm", ["sample_weight", "init_score", "eval_set"]),
        ("lightgbm_rank", ["qid", "sample_weight", "init_score", "eval_set"]),
        ("kmeans", []),
    ],
)
def test_what_is_taken(workload: str, given: list[str]) -> None:
    """Arguments that the library's fit takes are accepted."""
    libraries.refuse(choose(workload), given)


@pytest.mark.parametrize(
    ("workload", "given", "text"),
    [
        ("xgboost", ["init_score"], r"\(hist\) takes no init_score=, only sample_we"),
        ("xgboost", ["qid"], r"takes no qid="),
        ("xgboost_rank", ["qid", "sample_weight"], r"takes no sample_weight=, only "),
        ("lightgbm", ["base_margin", "qid"], r"no base_margin= and no qid=, only s"),
        ("kmeans", ["eval_set"], r"KMeans takes no eval_set=, only X and y"),
        ("xgboost_rank", [], r"learns from groups of rows; give qid="),
        ("lightgbm_rank", ["sample_weight"], r"learns from groups .*; give qid="),
    ],
)
def test_what_is_not_taken(workload: str, given: list[str], text: str) -> None:
    """Other arguments are refused before anything moves."""
    with pytest.raises(ValueError, match=text):
        libraries.refuse(choose(workload), given)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_given_is_nothing_to_pass(name: str) -> None:
    """Without companions the fit needs only X and y."""
    profile = libraries.available()[name].profile
    assert libraries.fit_kwargs(profile, FitInputs(training=Rows(X="X", y="y"))) == {}


def test_arguments_in_a_pipeline() -> None:
    """A pipeline passes them with the names of its steps."""
    model = Pipeline([("a", StandardScaler()), ("b", xgboost.dask.DaskXGBRanker())])
    handed = FitInputs(training=Rows(X="X", y="y", qid="q"), estimator=model)
    profile = choose(model)
    assert libraries.fit_kwargs(profile, handed) == {"b__qid": "q"}
    assert libraries.estimator_params(profile, handed) == {}
    rows = Rows(X="X", y="y", qid="q")
    threads = FitInputs(training=rows, estimator=model, n_threads=3)
    assert libraries.estimator_params(profile, threads) == {"b__n_jobs": 3}


def test_multiples() -> None:
    """Memory depends on the item size; an unlisted size has the largest multiple."""
    profile = choose("xgboost")
    assert profile.multiple(4) == profile.memory_multiple[4]
    assert profile.multiple(8) == profile.memory_multiple[8]
    most = max(profile.memory_multiple.values())
    assert profile.multiple(None) == profile.multiple(2) == most


# --- workloads of other packages ------------------------------------------------------

OTHER = '''
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries.workload import Workload
class Boost(Workload):
    """A training library of another package."""
    profile = Profile(
        name="boost", title="Boost", memory_multiple={8: 3.0}, source="said"
    )
    def matches(self, estimator):
        return True
    def fit_kwargs(self, handed):
        return {"weights": handed.training.sample_weight}
BOOST = Boost()
'''


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A distribution that is installed, with a workload that takes any estimator."""
    (tmp_path / "others_boost.py").write_text(OTHER)
    info = tmp_path / "boost-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boost\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[clustertune.workloads]\nboost = others_boost:BOOST\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    libraries.available.cache_clear()
    yield
    libraries.available.cache_clear()
    sys.modules.pop("others_boost", None)


def test_a_workload_of_another_package(other: Any) -> None:
    """It is known by its name and by its estimators, and never takes one of ours."""
    profile = choose("boost")
    assert isinstance(profile, Profile)
    assert profile.title == "Boost"
    assert choose(object()).name == "boost"
    assert choose(xgboost.dask.DaskXGBRanker).name == "xgboost_rank"
    handed = FitInputs(training=Rows(X="X", sample_weight="w"))
    assert libraries.fit_kwargs(profile, handed) == {"weights": "w"}
