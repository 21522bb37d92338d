"""One environment, written in several places that must agree."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from itertools import chain

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rattler import MatchSpec

from prefill_decode.book import claims_table, find_project
from prefill_decode.book.pages import phases_figure
from prefill_decode.results import load_all
from tests.conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CONDA_NAMES = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "prometheus-client": "prometheus_client",
    "xxhash": "python-xxhash",
}


def wanted() -> dict[str, SpecifierSet]:
    """What running and building the book needs, by conda name."""
    lines = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["run"],
        *PROJECT["optional-dependencies"]["serve"],
        *PROJECT["optional-dependencies"]["book"],
    ]
    found = [Requirement(line) for line in lines]
    return {CONDA_NAMES.get(r.name, r.name): r.specifier for r in found if not r.extras}


def test_environment_yml_equals_pyproject():
    document = yaml.safe_load((ROOT / "environment.yml").read_text())
    found = {}
    python = []
    for line in document["dependencies"]:
        if isinstance(line, dict):
            assert "-e ." in line["pip"]
            for word in line["pip"]:
                if word != "-e .":
                    found[Requirement(word).name] = Requirement(word).specifier
            continue
        spec = MatchSpec(line)
        if spec.name.normalized == "python":
            python.append(line)
            continue
        found[spec.name.normalized] = SpecifierSet(str(spec.version or "").replace("|", ","))
    [exact] = [re.fullmatch(r"python=(\d\.\d+)", line) for line in python]  # as Binder reads it
    assert exact is not None
    assert exact[1] in SpecifierSet(PROJECT["requires-python"])
    assert found.pop("pip") == SpecifierSet()
    assert found == wanted()


def test_installed_and_pinned_versions_satisfy_pyproject():
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    names = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pins.items()}
    lines = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            continue
        assert version(requirement.name) in requirement.specifier, requirement
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert names[name] in requirement.specifier, requirement


def test_jupyter_book_is_held_below_2():
    assert "2.0" not in wanted()["jupyter-book"]


def test_the_repositorys_address_is_the_same_everywhere():
    home = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    assert PROJECT["urls"]["Repository"] == home
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == home
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"git+{home}" in path.read_text(), path.name
    for folder in (".", "book", "benchmarks", "examples"):  # pages are filled in, others relative
        for path in (ROOT / folder).glob("*.md"):
            assert home not in path.read_text(), path


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert cited == version(PROJECT["name"])


def test_the_changelog_begins_with_this_version_and_the_citation_has_its_date():
    """A version that is not released has no date, in either."""
    headings = re.findall(
        r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    newest, date = headings[0]
    assert newest == version(PROJECT["name"])
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited.get("date-released", "unreleased")) == date
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", dated) for _, dated in headings[1:])


def test_the_citation_says_what_the_format_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)  # the format's own required keys
    assert cited["license"] == PROJECT["license"]


def test_every_workflow_is_yaml_and_runs_the_readmes_commands():
    texts = {path.name: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
    for text in texts.values():
        assert yaml.safe_load(text)["jobs"]
    assert "bash .ci/run" in texts["tests.yml"]
    assert "make book" in texts["weekly.yml"]
    assert "_build/failed" in texts["publish.yml"]
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make book" in ci
    assert "make test" in ci


def steps_of(workflow, job):
    document = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())
    return document["jobs"][job]["steps"]


@pytest.mark.parametrize(("workflow", "job"), [("tests.yml", "gate"), ("weekly.yml", "rebuild")])
def test_downloads_are_cached_and_failures_uploaded_even_when_a_chapter_fails(workflow, job):
    steps = steps_of(workflow, job)
    used = [step.get("uses", "").partition("@")[0] for step in steps]
    book = next(i for i, step in enumerate(steps) if step.get("id") == "book")
    save = used.index("actions/cache/save")
    assert used.index("actions/cache/restore") < book < save
    assert "always()" in steps[save]["if"]
    assert steps[save]["with"]["path"] == steps[used.index("actions/cache/restore")]["with"]["path"]
    uploads = [step for step in steps if step.get("uses", "").startswith("actions/upload-artifact")]
    assert any("_build/failed" in step["with"]["path"] for step in uploads)
    assert all("if" in step for step in uploads)


def test_a_workflow_gates_and_none_of_them_moves_the_baseline():
    commands = [step.get("run", "") for step in steps_of("tests.yml", "gate")]
    assert any('compare "$BASE" measured' in command for command in commands)
    assert any('compare --code "$BASE" .' in command for command in commands)
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        ran = [
            step.get("run", "")
            for job in yaml.safe_load(path.read_text())["jobs"].values()
            for step in job["steps"]
        ]
        assert not any("--accept" in command for command in ran), path.name


def test_every_path_in_the_readmes_map_exists():
    text = (ROOT / "README.md").read_text()
    section = text.partition("## The map")[2].partition("## Licence")[0]
    package = ROOT / "lib" / "prefill_decode"
    for name in re.findall(r"[\w/.]+\.(?:py|json|yml|md)\b", section):
        if name == "book/results/CLAIM/MACHINE.json":  # a pattern
            continue
        places = [ROOT / name, package / name, package / "measure" / name]
        assert any(place.exists() for place in places), name
    named = set(re.findall(r"\b(\w+)\.py\b|\b(\w+)/ ", section))
    for part in package.iterdir():
        if part.name.startswith(("_", ".")) or part.suffix not in ("", ".py"):
            continue
        assert any(part.stem in pair for pair in named) or f"{part.name}/" in section, part.name


def test_the_readmes_table_is_the_committed_records(tmp_path):
    """Of the commit, not of this folder, where a run may have changed a record since."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "book/results"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split():
        shown = subprocess.run(
            ["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, check=True
        )
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(shown.stdout)
    records, problems = load_all(tmp_path / "book" / "results")
    assert not problems
    table = claims_table(find_project(ROOT), records, "notebooks/{}.ipynb")
    assert table in (ROOT / "README.md").read_text()
    drawn = phases_figure(records).standalone() + "\n"
    committed = (tmp_path / "book" / "results" / "phases.svg").read_text()
    assert re.sub(r"[-\d.]+", "0", committed) == re.sub(r"[-\d.]+", "0", drawn)
    label = re.search(r'aria-label="[^"]+"', committed)
    assert label is not None
    assert label[0] in drawn
