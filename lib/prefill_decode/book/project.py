"""Project: where the book's parts lie, and which chapters it has.

Chapter order lives in _toc.yml and nowhere else; a chapter's title is the first heading of its
notebook."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import nbformat
import yaml

from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.results import find_checkout

BUILD_MARKER = ".made-by-prefill-decode"


@dataclass(frozen=True)
class Project:
    root: Path
    results: Path  # records, CLAIM/MACHINE.json
    build: Path  # everything generated

    def notebook(self, chapter: str) -> Path:
        return self.root / "notebooks" / f"{chapter}.ipynb"

    def prepare(self) -> None:
        """Make the folders for records and for generated files, before anything is measured.

        ValueError for a build folder that holds something else, or the records: building deletes.
        """
        if self.build in (self.results, *self.results.parents):
            raise ValueError(
                f"records must lie outside of the build folder, which is deleted now and then; got "
                f"{self.results} in {self.build}"
            )
        marker = self.build / BUILD_MARKER
        ours = self.build == self.root / "_build" or marker.is_file()
        if self.build.is_dir() and any(self.build.iterdir()) and not ours:
            raise ValueError(
                f"{self.build} holds files that the book did not make, and building deletes some; "
                "name a new or an empty folder with --build"
            )
        for folder in (self.build, self.results):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise ValueError(f"{folder} must be a folder to write to; {error}") from error
        marker.touch()

    def chapters(self) -> list[str]:
        """Chapter names in reading order. ValueError if the toc names a notebook that is not
        there.
        """
        path = self.root / "_toc.yml"
        toc = read_yaml(path)
        try:
            entries = [str(each["file"]) for part in toc["parts"] for each in part["chapters"]]
            str(toc["root"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: a table of contents has a root and parts, each with chapters that name a "
                f"file; this one lacks {error}"
            ) from error
        names = [Path(entry).name for entry in entries if entry.startswith("notebooks/")]
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: a chapter appears once; got {', '.join(names)}")
        missing = [name for name in names if not self.notebook(name).is_file()]
        if missing:
            raise ValueError(
                f"_toc.yml names notebooks that are not there: {', '.join(missing)}; "
                "add the file or remove the line"
            )
        return names

    def repository_url(self) -> str:
        """The address in _config.yml that every link of the book begins with."""
        path = self.root / "_config.yml"
        repository = read_yaml(path).get("repository")
        url = repository.get("url") if isinstance(repository, dict) else None
        if not isinstance(url, str) or not url.startswith("https://"):
            raise ValueError(f"{path}: repository/url must be an https address; got {url!r}")
        return url

    def commit(self) -> str | None:
        """The checkout's commit, in short; None without git."""
        command = ["git", "-C", str(self.root), "rev-parse", "--short=12", "HEAD"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    def chosen(self, wanted: list[str], given_as: str = "claim") -> list[str]:
        """The wanted chapters in reading order, all when none is named. ValueError for unknown
        ones, in words that name what they were given as.
        """
        names = self.chapters()
        for name in wanted:
            if name not in names:
                hint = did_you_mean(name, names)
                raise ValueError(
                    f"{given_as} must be one of {', '.join(names)}; got {name!r}{hint}"
                )
        return [name for name in names if not wanted or name in wanted]

    def title(self, chapter: str) -> str:
        path = self.notebook(chapter)
        heading = re.match(r"# (.+)", next((c.source for c in read_notebook(path).cells), ""))
        if heading is None:
            raise ValueError(f"{path.name}: a notebook's first cell begins with its title, '# ...'")
        return heading[1]


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping. ValueError in one sentence if it does not."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{path}: not a readable YAML file: {words}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: holds a mapping of settings; got {document!r}")
    return document


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook, checked to be one. ValueError in one sentence if it is not."""
    try:
        notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a readable notebook: {error}") from error
    except nbformat.ValidationError as error:
        raise ValueError(f"{path}: not a readable notebook: {error.message}") from error
    return notebook


def find_project(start: Path, results: Path | None = None, build: Path | None = None) -> Project:
    """The checkout that holds `start`. ValueError outside of one."""
    root = find_checkout(start)
    if root is None:
        raise ValueError(
            f"{start} is not inside a checkout of the book (no _toc.yml beside a notebooks "
            f"folder); "
            "change to one, or clone it"
        )
    return Project(
        root,
        (results or root / "book" / "results").absolute(),
        (build or root / "_build").absolute(),
    )
