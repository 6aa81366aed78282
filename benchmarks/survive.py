"""An XGBoost fit that loses a worker, against the same fit without a loss.

Three workers with one thread each hold 0.1 GB. `plain` is `clustertune.fit` with
`max_failures=0`. `checkpoints` is the same with `max_failures=1` and a checkpoint each
second, and loses no worker. `killed` is `checkpoints`, and one worker is killed with
SIGKILL when half of the rounds are done. `ray_killed` is a trainer of Ray Train for
XGBoost with the same rows in Ray's memory, as many workers, about as many checkpoints
and the same loss; it needs `pip install "ray[train]"`, and more than 60 trees: Ray
Train fails if it loses a worker before a checkpoint was reported. The seconds are those
of the whole call. `waits` is the time in which the training of any worker waits for
clustertune between two rounds, by another callback. It shows the cost of
checkpoints better than the seconds: three workers on two CPUs take 5 % more or less in
each run. `loss` is the log loss on rows that no model has seen.

Options: `--rounds 6`, `--mb 100`, `--trees 400`,
`--variants plain,checkpoints,killed,ray_killed`, `--every 20` (trees between two
checkpoints of Ray).
"""

import argparse
import json
import os
import signal
from tempfile import TemporaryDirectory
from time import perf_counter

import measure
import numpy as np
from measure import workers_of
from xgboost.callback import TrainingCallback

WORKERS = 3
COLUMNS = 50
PARTITIONS = 12
HELD_OUT = 50_000  # rows
INTERVAL = 1.0  # seconds between two checkpoints
VARIANTS = ("plain", "checkpoints", "killed", "ray_killed")


def block(number, rows):
    """Rows with their label in the last column."""
    random = np.random.default_rng([1, number])
    values = random.standard_normal((rows, COLUMNS + 1), dtype="f4")
    score = values[:, 0] + values[:, 1] * values[:, 2] + values[:, -1]
    values[:, -1] = score > 0
    return values


class Waits(TrainingCallback):
    """Adds up the time from the end of a round's work to the next round."""

    def before_training(self, model):
        self.waited, self.ended, self.began = 0.0, None, perf_counter()
        return model

    def after_iteration(self, model, epoch, evals_log):
        self.ended = perf_counter()
        return False

    def before_iteration(self, model, epoch, evals_log):
        if self.ended is not None:
            self.waited += perf_counter() - self.ended
        return False

    def after_training(self, model):
        from distributed import get_worker

        get_worker().waited = self.waited / (perf_counter() - self.began)
        return model


def source(mb):
    import dask
    import dask.array as da

    rows = mb * 10**6 // (4 * (COLUMNS + 1) * PARTITIONS)
    blocks = [
        da.from_delayed(dask.delayed(block)(i, rows), (rows, COLUMNS + 1), "f4")
        for i in range(PARTITIONS)
    ]
    values = da.concatenate(blocks)
    return values[:, :-1], values[:, -1].astype("i4")


class Killer:
    """The progress of a fit; kills a process when half of the rounds are done."""

    def __init__(self, pid):
        self.pid = pid

    def __call__(self, text, fraction):
        in_training = text.startswith("round ") and fraction is not None
        if self.pid is not None and in_training and fraction >= 0.5:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = None


def train(given):
    """The training of one worker of Ray, which continues from a checkpoint."""
    import ray
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback

    context = ray.train.get_context()
    rank = context.get_world_rank()
    values = np.concatenate(ray.get(list(given["blocks"][rank::WORKERS])))
    rows = xgboost.QuantileDMatrix(values[:, :-1], values[:, -1])
    checkpoint = ray.train.get_checkpoint()
    former = checkpoint and RayTrainReportCallback.get_model(checkpoint)
    done = former.num_boosted_rounds() if former else 0

    class Checkpoints(RayTrainReportCallback):
        def _report_metrics(self, report_dict):
            """Report with checkpoints only: each report waits 1 s or more."""

    class Kill(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            if former is None and rank == 1 and epoch >= given["trees"] // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        rows,
        given["trees"] - done,
        xgb_model=former,
        callbacks=[Kill(), Checkpoints(frequency=given["every"])],
    )


def with_ray(mb, trees, every):
    """Return the seconds of a training that loses a worker, and its booster."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

    quiet = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "error",
    }
    ray.init(num_cpus=WORKERS, **quiet)
    rows = mb * 10**6 // (4 * (COLUMNS + 1) * PARTITIONS)
    made = ray.remote(num_cpus=1)(block)
    blocks = [made.remote(i, rows) for i in range(PARTITIONS)]
    ray.wait(blocks, num_returns=PARTITIONS)
    with TemporaryDirectory() as folder:
        trainer = XGBoostTrainer(
            train,
            train_loop_config={"blocks": blocks, "trees": trees, "every": every},
            scaling_config=ScalingConfig(
                num_workers=WORKERS, resources_per_worker={"CPU": 1}
            ),
            run_config=RunConfig(
                storage_path=folder, failure_config=FailureConfig(max_failures=1)
            ),
        )
        start = perf_counter()
        result = trainer.fit()
        seconds = perf_counter() - start
        booster = RayTrainReportCallback.get_model(result.checkpoint)
    ray.shutdown()
    return seconds, booster


def with_dask(name, trees, mb):
    """Return seconds of a fit, its booster, if it is identical, and its waiting."""
    import dask
    import xgboost.dask
    from distributed import wait

    import clustertune

    dask.config.set({"distributed.logging.distributed": "critical"})
    with measure.cluster(WORKERS, dashboard_address=None) as client:
        X, y = client.persist(source(mb))
        wait([X, y])
        # the first fit of a worker loads the library
        small = xgboost.dask.DaskXGBClassifier(n_estimators=2, n_jobs=1)
        clustertune.fit(client, small, X, y, progress=False)
        victim = list(workers_of(client))[1]
        (pid,) = client.run(os.getpid, workers=[victim]).values()
        killer = Killer(pid if name == "killed" else None)
        model = xgboost.dask.DaskXGBClassifier(n_estimators=trees, n_jobs=1)
        if name != "killed":
            model.set_params(callbacks=[Waits()])
        options = {}
        if name != "plain":
            options = {"max_failures": 1, "checkpoint_every": INTERVAL}
        start = perf_counter()
        clustertune.fit(client, model, X, y, progress=killer, **options)
        seconds = perf_counter() - start
        assert killer.pid is None, "no worker was killed"
        waits = client.run(lambda dask_worker: getattr(dask_worker, "waited", 0.0))
        booster = model.get_booster()
        notes = "\n".join(model.clustertune_report_.notes)
    identical = "identical to an uninterrupted fit: yes" in notes
    return seconds, booster, identical, max(waits.values())


def variant(name, mb, trees, every):
    used = {}
    if name == "ray_killed":
        with measure.orphans() as used:  # daemons that end after their parent
            seconds, booster = with_ray(mb, trees, every)
        identical, waits = False, 0.0
    else:
        seconds, booster, identical, waits = with_dask(name, trees, mb)
    assert booster.num_boosted_rounds() == trees
    test = block(PARTITIONS, HELD_OUT)
    predicted = booster.inplace_predict(test[:, :-1]).clip(1e-7, 1 - 1e-7)
    right = np.where(test[:, -1] == 1, predicted, 1 - predicted)
    return {
        "seconds": seconds,
        "loss": float(-np.log(right).mean()),
        "identical": float(identical),
        "waits": waits,
        **used,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--trees", type=int, default=400)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--variants", default="plain,checkpoints,killed")
    parser.add_argument("--variant", choices=VARIANTS)
    given = parser.parse_args()
    if given.variant:
        made = variant(given.variant, given.mb, given.trees, given.every)
        print(json.dumps(made))
        return
    names = given.variants.split(",")
    if {*names} - {*VARIANTS} or "plain" not in names:
        parser.error(f"--variants: choose plain and others from {VARIANTS}")
    sizes = ("--mb", str(given.mb), "--trees", str(given.trees))
    sizes += ("--every", str(given.every))
    rounds = measure.run(__file__, names, given.rounds, *sizes)
    print(measure.machine())
    measure.show(
        rounds,
        {f"{n}.seconds": f"{n}: s" for n in names}
        | {f"{n}.loss": f"{n}: log loss on other rows" for n in names},
    )
    if "checkpoints" in names:
        cost = measure.ratios(rounds, "checkpoints.seconds", "plain.seconds")
        measure.compare("seconds, checkpoints / plain", cost)
        waits = [1 + r["checkpoints.waits"] - r["plain.waits"] for r in rounds]
        measure.compare(
            "training that waits for checkpoints / plain",
            measure.interval(waits),
            at_most=1.01,
            headline=True,
        )
    if "killed" not in names:
        return
    more = measure.interval([r["killed.seconds"] - r["plain.seconds"] for r in rounds])
    measure.compare("seconds that the loss of a worker added", more)
    measure.compare(
        "seconds that the loss of a worker added, median",
        more.median,
        at_most=INTERVAL + 10,
        headline=True,
    )
    measure.compare(
        "seconds, killed / plain",
        measure.ratios(rounds, "killed.seconds", "plain.seconds"),
    )
    measure.compare(
        "held-out loss, killed / plain",
        measure.ratios(rounds, "killed.loss", "plain.loss"),
        at_most=1.01,
    )
    if "ray_killed" in names:
        measure.compare(
            "seconds, killed / Ray Train with the same loss",
            measure.ratios(rounds, "killed.seconds", "ray_killed.seconds"),
            at_most=0.7,
            headline=True,
        )
    same = [r["killed.identical"] for r in rounds]
    measure.compare("fits that were reported as identical", f"{sum(same):.0f} of "
        f"{len(same)}")  # fmt: skip


if __name__ == "__main__":
    main()
