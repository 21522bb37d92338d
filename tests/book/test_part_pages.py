"""The pages that open a part: its chapters, and what the records say of them."""

import json

import pytest

from prefill_decode.book import find_project
from prefill_decode.book.part_pages import _whose, newest, part_tables, parts_of
from prefill_decode.book.project import read_yaml
from tests.conftest import ROOT


@pytest.fixture
def project(make_project):
    project = make_project()
    path = project.root / "_toc.yml"
    toc = json.loads(path.read_text())
    toc["parts"][0]["chapters"].insert(0, {"file": "book/part_one_thing"})
    path.write_text(json.dumps(toc))
    return project


def test_a_parts_table_has_its_chapters_verdicts_and_first_predictions(project, record):
    assert parts_of(project) == {"part_one_thing": ["first", "second"]}
    slug = record["machine"]["slug"]
    text = part_tables(project, [{**record, "claim": "first"}], slug)["part-one-thing"]
    assert (
        "| [The first claim](../notebooks/first.ipynb)<br>batch 8 / batch 1 | ✓ supported "
        "| 1.20 [1.10, 1.30] | 1.10 | 8.00 |"
    ) in text
    assert "| [The second claim](../notebooks/second.ipynb) | not run |  |  |  |" in text
    assert "Found on Test CPU @ 2.0, 2 cores (this machine)." in text
    assert part_tables(project, [], slug)["part-one-thing"].endswith("has been run yet.")


def test_the_machines_of_a_table_are_listed(record):
    def on(slug):
        return {**record, "machine": {**record["machine"], "slug": slug}}

    names = {"a": "A", "b": "B", "c": "C"}
    assert _whose([on("a"), on("a")], names, "b") == "Found on A."
    assert _whose([on("a"), on("b")], names, "b") == "Found on A and B (this machine)."
    assert _whose([on("a"), on("b"), on("c")], names, "x") == "Found on A, B and C."


def test_this_machines_record_goes_before_a_newer_one(record):
    def on(slug, date):
        return {**record, "machine": {**record["machine"], "slug": slug}, "date": date}

    records = [on("here", "2026-01-01T00:00:00Z"), on("there", "2026-02-01T00:00:00Z")]
    assert newest(records, record["claim"], "here") is records[0]
    assert newest(records, record["claim"], "elsewhere") is records[1]
    assert newest(records, "another", "here") is None


def test_every_part_with_chapters_is_opened_by_a_page_that_links_to_them_all():
    project = find_project(ROOT)
    parts = parts_of(project)
    assert [name for chapters in parts.values() for name in chapters] == project.chapters()
    captions = [part["caption"] for part in read_yaml(ROOT / "_toc.yml")["parts"]]
    for (page, chapters), caption in zip(parts.items(), captions, strict=False):
        text = (ROOT / "book" / f"{page}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {caption.partition('. ')[2]}\n")
        assert f"<!-- {page.replace('_', '-')} -->" in text
        for name in chapters:
            assert f"[{project.title(name)}](../notebooks/{name}.ipynb)" in text
