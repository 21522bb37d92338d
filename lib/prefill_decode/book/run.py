"""Run: execute one chapter's notebook with papermill, once for each state of what it depends on.

A run is kept as BUILD/runs/CHAPTER.KEY.ipynb. The key hashes the notebook, the parameters, the
library, the pinned versions and the machine, so a chapter is run again exactly when one of them
has changed. Whatever stops a run, the chapters that finished before it stay finished, earlier
records stay as they were, and the cells that did run are kept in BUILD/failed."""

import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import nbformat

from prefill_decode.book.project import Project, read_notebook
from prefill_decode.measure import Machine
from prefill_decode.results import load

KERNEL_NAME = "prefill-decode"
CELL_TIMEOUT_S = 1800
SOURCE_SUFFIXES = (".py", ".json", ".cpp")


class ChapterFailure(Exception):
    """A chapter that did not finish, said in one sentence; `kept` holds the cells that did run."""

    def __init__(self, chapter: str, reason: str, kept: Path | None) -> None:
        self.chapter, self.reason, self.kept = chapter, reason, kept
        super().__init__(
            f"{chapter}: {reason}" + (f"; the cells that ran are kept in {kept}" if kept else "")
        )


def run_chapter(
    project: Project,
    chapter: str,
    parameters: Mapping[str, Any],
    machine: Machine,
    *,
    cell_timeout_s: int = CELL_TIMEOUT_S,
    progress: bool = False,
    again: bool = False,
) -> tuple[Path, bool]:
    """The executed notebook, and whether it had to be run now. ChapterFailure if it does not
    finish.
    """
    done = _run_path(project, chapter, parameters, machine)
    record_of_run = done.with_suffix(".record")  # the digest of the record that this run saved
    record = project.results / chapter / f"{machine.slug}.json"
    if done.is_file() and not again and _digest(record) == _read(record_of_run):
        return done, False
    partial = done.with_suffix(".partial.ipynb")
    done.parent.mkdir(parents=True, exist_ok=True)
    injected = {**parameters, "results_dir": str(project.results)}
    try:
        _execute(project, chapter, injected, partial, cell_timeout_s, progress)
        check_outputs(read_notebook(partial))
    except KeyboardInterrupt:
        raise ChapterFailure(chapter, "interrupted", _keep(project, chapter, partial)) from None
    except Exception as error:
        reason = _explain(error, partial, cell_timeout_s)
        raise ChapterFailure(chapter, reason, _keep(project, chapter, partial)) from error
    digest = _digest(record)
    if not digest:
        reason = "it finished without saving its record; a chapter ends with results.save"
        raise ChapterFailure(chapter, reason, _keep(project, chapter, partial))
    for older in done.parent.glob(f"{chapter}.*"):
        if older != partial:
            older.unlink()
    partial.rename(done)
    record_of_run.write_text(digest)
    return done, True


@contextmanager
def measuring_alone(project: Project) -> Iterator[None]:
    """Hold the build folder while measuring. ValueError when another run holds it."""
    with (project.build / "measuring.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"another run is measuring into {project.build}, and two would disturb each other; "
                "wait for it to end"
            ) from error
        yield


def check_outputs(notebook: nbformat.NotebookNode) -> None:
    """ValueError if a cell failed or wrote to stderr: its page would show that to every reader."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" or output.get("name") == "stderr":
                words = output.get("text") or f"{output.get('ename')}: {output.get('evalue')}"
                raise ValueError(f"cell {cell.id} failed or wrote to stderr: {words.strip()[:200]}")


def _digest(record: Path) -> str:
    """Of a record that can be read; empty when there is none."""
    try:
        load(record)
    except ValueError:
        return ""
    return sha256(record.read_bytes()).hexdigest()


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else "never"


def _execute(
    project: Project,
    chapter: str,
    parameters: dict[str, Any],
    output: Path,
    cell_timeout_s: int,
    progress: bool,
) -> None:
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)  # parameters were checked more strictly
    with private_kernel():
        papermill.execute_notebook(
            str(project.notebook(chapter)),
            str(output),
            parameters=parameters,
            kernel_name=KERNEL_NAME,
            language="python",
            cwd=str(project.root),
            progress_bar=progress,
            execution_timeout=cell_timeout_s,
            request_save_on_cell_execute=True,
        )


@contextmanager
def private_kernel() -> Iterator[None]:
    """A kernel that is this very Python, found in a folder of its own.

    A user's kernel named python3, start-up files or a second run on this machine cannot get in
    its way."""
    with tempfile.TemporaryDirectory(prefix="prefill-decode-") as name:
        folder = Path(name)
        kernel = folder / "kernels" / KERNEL_NAME
        kernel.mkdir(parents=True)
        argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher"]
        spec = {
            "argv": [
                *argv,
                "--log-level=50",
                "-f",
                "{connection_file}",
            ],  # it is killed or interrupted at times
            "display_name": "Python 3",
            "language": "python",
        }
        (kernel / "kernel.json").write_text(json.dumps(spec))
        changed = {
            "JUPYTER_DATA_DIR": str(folder),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value


def sources_of_the_library() -> list[Path]:
    """Every file of the library that a chapter's numbers may depend on: all but the book's own."""
    package = Path(__file__).parents[1]
    return [
        path
        for path in sorted(package.rglob("*"))
        if path.suffix in SOURCE_SUFFIXES and "book" not in path.parts[len(package.parts) :]
    ]


def _run_path(
    project: Project, chapter: str, parameters: Mapping[str, Any], machine: Machine
) -> Path:
    pins = project.root / "constraints.txt"
    digest = sha256(json.dumps([parameters, machine.as_dict()], sort_keys=True).encode())
    for path in [project.notebook(chapter), pins, *sources_of_the_library()]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return project.build / "runs" / f"{chapter}.{digest.hexdigest()[:12]}.ipynb"


def _explain(error: Exception, partial: Path, cell_timeout_s: int) -> str:
    """One sentence: which cell was running and what stopped it."""
    kind = type(error).__name__
    where = _last_started_cell(partial)
    if kind == "DeadKernelError":
        return f"the kernel died in {where}; short of memory? see prefill-decode doctor"
    if kind == "CellTimeoutError":
        return f"{where} ran longer than {cell_timeout_s} s; raise --timeout or lower --budget"
    if kind == "PapermillExecutionError":
        return f"{where} raised {getattr(error, 'ename', '')}: {getattr(error, 'evalue', '')}"
    if isinstance(error, ValueError):
        return str(error)
    return f"{where} did not run: {kind}: {error}"


def _last_started_cell(partial: Path) -> str:
    """papermill notes when each cell started; a kernel's death leaves its status "completed"."""
    cells = read_notebook(partial).cells if partial.is_file() else []
    started = [cell for cell in cells if cell.metadata.get("papermill", {}).get("start_time")]
    if not started:
        return "the first cell"
    return f"cell {started[-1].id} ({started[-1].source.strip().splitlines()[0][:60]!r})"


def _keep(project: Project, chapter: str, partial: Path) -> Path | None:
    if not partial.is_file():
        return None
    kept = project.build / "failed" / f"{chapter}.ipynb"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(partial, kept)
    return kept
