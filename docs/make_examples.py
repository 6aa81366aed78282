"""Run the script of the README and the tutorial, and store what they print.

``python -m docs.make_examples`` writes README.md and docs/tutorial.ipynb. It needs the
extra ``test``. tests/docs/test_examples.py runs both and compares.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
#: the script, and the output below it
EXAMPLE = re.compile(
    r"(?<=```python\n)(?P<script>.*?)```\n\n```text\n(?P<output>.*?)(?=```)", re.DOTALL
)
#: logs of Dask depend on the machine; its GIL monitor can abort a process at its end
ENVIRONMENT = os.environ | {
    "DASK_LOGGING__DISTRIBUTED": "CRITICAL",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
}
#: Dask warns in four lines that another cluster has the port of its dashboard
_NOISE = re.compile(r".*Warning: |Perhaps you|Hosting the HTTP|  warnings\.warn|$")


def example(text: str) -> tuple[str, str]:
    """Return the script of the README and its output."""
    found = EXAMPLE.search(text)
    assert found, "README.md has no script with its output"
    return found["script"], found["output"]


def run_script(script: str) -> str:
    """Run a script in a new process without a terminal; return the lines it prints.

    Raises
    ------
    RuntimeError
        The script has failed.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "example.py")
        file.write_text(script)
        done = subprocess.run(  # noqa: S603
            [sys.executable, file.name],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)
        return clean(done.stdout)


def clean(text: str) -> str:
    """Remove progress that was overwritten, empty lines, and the warning of Dask."""
    # processes write at the same time, and may end their lines later
    text = re.sub(r"(?<=[^\n])(?=\[\d\d:\d\d:\d\d\] Task)", "\n", text)
    lines = [x.rstrip("\r").rpartition("\r")[2] for x in text.split("\n")]
    return "".join(f"{x.rstrip()}\n" for x in lines if not _NOISE.match(x))


def run_tutorial() -> nbformat.NotebookNode:
    """Run all cells of the tutorial in a new process; an error in a cell is raised."""
    notebook = nbformat.read(TUTORIAL, as_version=4)
    # widgets have no text to store
    NotebookClient(notebook, timeout=300, store_widget_state=False).execute(
        env=ENVIRONMENT
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def merged(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join the texts of each stream, without progress and logs."""
    streams: dict[str, str] = {}
    for output in outputs:
        if output.output_type == "stream":
            streams[output.name] = streams.get(output.name, "") + output.text
    texts = {name: clean(text) for name, text in streams.items()}
    others = [x for x in outputs if x.output_type != "stream"]
    return [
        *(
            nbformat.v4.new_output("stream", name=name, text=text)
            for name, text in texts.items()
            if text
        ),
        *others,
    ]


def main() -> None:
    """Write both files."""
    readme = README.read_text()
    script, output = example(readme)
    README.write_text(readme.replace(output, run_script(script), 1))
    notebook = run_tutorial()
    nbformat.write(notebook, TUTORIAL)


if __name__ == "__main__":
    main()
