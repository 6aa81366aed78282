"""Names that a shell completes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

from clustertune.cli import main
from tests.test_cli import no_address  # noqa: F401 (a fixture)


def completed(*words: str) -> list[str]:
    """Return the names that bash offers for the last word."""
    asked = {
        "_CLUSTERTUNE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(map(shlex.quote, ("clustertune", *words))),
        "COMP_CWORD": str(len(words)),
    }
    found = CliRunner().invoke(main, [], env=asked, prog_name="clustertune")
    assert (found.exit_code, found.stderr) == (0, "")
    return [line.removeprefix("plain,") for line in found.stdout.split("\n") if line]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["explain", "memory_g"], ["memory_growth"]),
        (["run", "betw"], ["file,betw", "between-runs"]),
        (["playbooks", "--lint", "betw"], ["file,betw", "between-runs"]),
        (["check", "--workload", "xgboost_"], ["xgboost_dmatrix", "xgboost_rank"]),
        (["size", "--workload", "torch"], ["torch_ddp"]),
        (["plan", "prepare", "--workload", "light"], ["lightgbm", "lightgbm_rank"]),
        (["prepare", "--dataset", ""], []),
        (["prepare", "tcp://127.0.0.1:1", "--dataset", ""], []),
        (["prepare", "--cluster", "gateway:x", "--dataset", ""], []),
    ],
)
def test_names_are_completed(words: list[str], names: list[str]) -> None:
    """Without a cluster there is no name of published data, and no error."""
    assert completed(*words) == names


def test_a_wrong_setting_completes_no_playbook() -> None:
    """The command itself reports the setting."""
    with dask.config.set({"clustertune.playbooks": "/no/such"}):
        assert completed("run", "b") == ["file,b"]


def test_published_data_is_completed(tmp_path: Path) -> None:
    """The line or the configuration names the scheduler; odd names are left out."""
    options: dict[str, Any] = {"processes": False, "protocol": "tcp://"}
    options |= {"n_workers": 0, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        for name in ("train-X", "train-y", "test", "train$(id)", "train X", ("t", 1)):
            client.publish_dataset(1, name=name)
        address = cluster.scheduler_address
        expected = ["train-X", "train-y"]
        assert completed("check", address, "--dataset", "tr") == expected
        pieces = address.replace(":", " : ").split()  # as bash passes it
        assert completed("check", *pieces, "--dataset", "tr") == expected
        assert completed("prepare", address, "--qid", "te") == ["test"]
        assert completed("prepare", address, "--eval-set", "train-X", "te") == ["test"]
        file = tmp_path / "scheduler.json"
        file.write_text(json.dumps({"address": address}))
        words = ("run", "observe", "--scheduler-file", str(file), "--dataset", "tr")
        assert completed(*words) == expected
        with dask.config.set({"scheduler-address": address}):
            assert completed("check", "--dataset", "tr") == expected


def test_names_are_completed_fast() -> None:
    """Names of checks, playbooks and workloads need no distributed."""
    code = """
import sys
from clustertune.cli.completion import check_names, playbook_names, workload_names
assert all(f(None, None, "") for f in (check_names, playbook_names, workload_names))
print({m.partition(".")[0] for m in sys.modules} & {"distributed", "pandas", "ruamel"})
"""
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, timeout=120) == "set()\n"
