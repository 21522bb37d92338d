"""Sources: the runs that a folder, a file or a git revision holds, and the code of a revision.

A folder of results, the checkout's own or any other, gives its records as runs, and its pinned
runs; as a base also its history. A revision is read from git as that folder was, without checking
it out. Fresh records in another folder of a checkout go with the pinned runs of that checkout.
"""

import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from stat import S_ISLNK

from prefill_decode.results import (
    Record,
    Run,
    baselines,
    find_checkout,
    history,
    load,
    load_all,
    read_runs,
    run_of,
)

RESULTS = "book/results"
LIBRARY = "lib/prefill_decode"


@dataclass(frozen=True)
class Source:
    """What was found in one place. `records` are those that `runs` come from, by run_id."""

    place: str  # a path or a commit, resolved
    runs: list[Run]
    earlier: list[Run] = field(default_factory=list)  # the folder's history
    pinned: list[Run] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    of_checkout: bool = False  # a checkout's results, or a revision's: baselines live there

    @property
    def as_base(self) -> list[Run]:
        """Every run once: the history, and records that did not get there."""
        return list({run.run_id: run for run in (*self.runs, *self.earlier)}.values())


def read_sources(base: str, current: str, checkout: Path | None) -> tuple[Source, Source]:
    """Both sides of a comparison. ValueError for one that holds nothing usable, and for both the
    same.

    A current file that holds one claim alone speaks for that claim: other claims of the base are
    not missed.
    """
    for side, text in (("BASE", base), ("CURRENT", current)):
        if not text.strip():
            raise ValueError(
                f"{side} is a folder, a file or a revision; got an empty text: name it"
            )
    before, now = _read(base, checkout), _with_pins_around(_read(current, checkout))
    if before.place == now.place:
        raise ValueError(
            f"a run is never compared with itself; {base!r} and {current!r} are both {now.place}: "
            "name two states"
        )
    if not before.as_base and not before.pinned:
        raise _nothing(base, before.problems)
    if not now.runs:
        raise _nothing(current, now.problems)
    claims = {run.claim for run in now.runs}
    if Path(now.place).is_file() and len(claims) == 1:
        before, now = _only(before, claims), _only(now, claims)
    return before, now


def pins_of(base: Source, current: Source) -> tuple[list[Run], set[tuple[str, str]]]:
    """The runs that current ones are held against for good, and the claims and kinds of machine
    whose pin has moved with the change under test: current's own pins come before base's."""
    before, now = _by_place(base.pinned), _by_place(current.pinned)
    moved = {
        place
        for place, runs in now.items()
        if _ids(runs) != _ids(before.get(place, [])) and (place in before or base.of_checkout)
    }
    chosen = before | now
    return [run for runs in chosen.values() for run in runs], moved


def _ids(runs: Sequence[Run]) -> set[str]:
    return {run.run_id for run in runs}


def _by_place(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.claim, run.machine["kind"]), []).append(run)
    return found


def _with_pins_around(source: Source) -> Source:
    """Fresh records go with the pins of the checkout that they lie in, but for those they bring."""
    path = Path(source.place)
    root = find_checkout(path) if path.exists() else None
    if root is None or source.of_checkout:
        return source
    around, problems = baselines(root / RESULTS)
    chosen = _by_place(around) | _by_place(source.pinned)
    pinned = [run for runs in chosen.values() for run in runs]
    told = list(dict.fromkeys([*source.problems, *problems]))
    return replace(source, pinned=pinned, problems=told)


def _read(text: str, checkout: Path | None) -> Source:
    path = Path(text)
    try:
        exists = path.exists()
    except OSError as error:
        raise ValueError(f"runs are read from a folder, a file or a revision; {error}") from error
    if path.is_dir():
        return _read_folder(_results_of(path), str(_results_of(path).resolve()))
    if exists:
        return _read_file(path)
    return _read_revision(text, checkout)


def _results_of(folder: Path) -> Path:
    """A checkout's root stands for its results."""
    return folder / RESULTS if find_checkout(folder.resolve()) == folder.resolve() else folder


def _read_folder(folder: Path, place: str) -> Source:
    records, problems = load_all(folder)
    earlier, more = history(folder)
    pinned, still_more = baselines(folder)
    by_run = {run_of(record).run_id: record for record in records}
    runs = [run_of(record) for record in records]
    root = find_checkout(folder.resolve())
    return Source(
        place,
        runs,
        earlier,
        pinned,
        by_run,
        [*problems, *more, *still_more],
        root is not None and folder.resolve() == (root / RESULTS).resolve(),
    )


def _read_file(path: Path) -> Source:
    place = str(path.resolve())
    if path.suffix == ".jsonl":
        return Source(place, read_runs(path))
    record = load(path)
    run = run_of(record)
    return Source(place, [run], records={run.run_id: record})


def _read_revision(text: str, checkout: Path | None) -> Source:
    with _unpacked(text, checkout, RESULTS) as (folder, revision, links):
        found = _read_folder(folder / RESULTS, revision)
        told = [problem.replace(f"{folder}/", f"{text}:") for problem in found.problems]
        told += links
    return replace(found, problems=told, of_checkout=True)


@contextmanager
def code_of(text: str, checkout: Path | None) -> Iterator[Path]:
    """A folder that holds lib/prefill_decode: a checkout's own, or a revision's for as long as the
    block lasts. ValueError for neither."""
    if not text.strip():
        raise ValueError("code is read from a checkout or a revision; got an empty text: name it")
    path = Path(text)
    if path.is_dir():
        if not (path / LIBRARY).is_dir():
            raise ValueError(f"code is read from a checkout or a revision; {text!r} has no library")
        yield path.resolve()
    else:
        with _unpacked(text, checkout, LIBRARY) as (folder, _, links):
            if links:
                raise ValueError(links[0])
            yield folder


@contextmanager
def _unpacked(text: str, checkout: Path | None, what: str) -> Iterator[tuple[Path, str, list[str]]]:
    """A temporary folder with this part of a revision, the commit that the revision names, and a
    sentence for each symbolic link, which is left out: it may lead to what is not in the commit."""
    if checkout is None:
        raise ValueError(
            f"a source is a folder, a file, or a revision of the checkout of the book; {text!r} "
            "is no file, and this is no checkout"
        )
    name = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"]
    commit = _git(checkout, name)
    if commit is None:
        raise ValueError(
            f"a source is a folder, a file or a git revision; {text!r} is none of them: "
            "look for a typing error, or fetch the branch"
        )
    revision = commit.decode().strip()
    packed = _git(checkout, ["archive", "--format=zip", revision, what])
    if packed is None:
        raise ValueError(f"revision {text!r} holds no {what}: name one that has it")
    with tempfile.TemporaryDirectory(prefix="prefill-decode-") as folder:
        with zipfile.ZipFile(BytesIO(packed)) as archive:
            links = [member for member in archive.infolist() if _is_link(member)]
            files = [member for member in archive.infolist() if not _is_link(member)]
            archive.extractall(folder, files)  # it strips what would lead out of the folder
        yield Path(folder), revision, [_said_of_link(text, member.filename) for member in links]


def _is_link(member: zipfile.ZipInfo) -> bool:
    return S_ISLNK(member.external_attr >> 16)


def _said_of_link(text: str, name: str) -> str:
    return (
        f"{text}:{name}: a symbolic link, and links are not followed in a revision: commit what it "
        "leads to in its place"
    )


def _git(checkout: Path, words: Sequence[str]) -> bytes | None:
    """What git prints, None where it fails. ValueError without git."""
    try:
        done = subprocess.run(["git", *words], cwd=checkout, capture_output=True, check=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"a revision is read with git; {error}") from error
    return done.stdout if done.returncode == 0 else None


def _only(source: Source, claims: set[str]) -> Source:
    def kept(runs: list[Run]) -> list[Run]:
        return [run for run in runs if run.claim in claims]

    return replace(
        source,
        runs=kept(source.runs),
        earlier=kept(source.earlier),
        pinned=kept(source.pinned),
    )


def _nothing(text: str, problems: Sequence[str]) -> ValueError:
    found = f": {problems[0]}" if problems else ""
    return ValueError(f"a comparison needs runs on both sides; {text!r} holds no usable one{found}")
