"""The pages on results: every number is that of its run, and odd runs still make a page."""

import json
import re
import subprocess
from dataclasses import replace
from math import nan

import pytest
from markdown_it import MarkdownIt

from prefill_decode.book import stage
from prefill_decode.book.pages import provenance
from prefill_decode.book.results_pages import (
    Chapter,
    committed_records,
    history_overview,
    history_page,
    history_section,
    machines_page,
    machines_section,
    plain,
    problems_note,
    surprises,
    surprising_here,
    with_records,
)
from prefill_decode.book.slim_svg import slim
from prefill_decode.book.stage import page_entries
from prefill_decode.plots.machine_figures import MOST_MACHINES
from prefill_decode.results import load_all, run_of
from tests.conftest import ROOT
from tests.results_by_hand import BATCH, CLAIM, SHARE, TIME, make_run, ratio

CHAPTER = Chapter(CLAIM, "Decode is bandwidth-bound")
ANOTHER = Chapter("another", "Another")
MINE = "here-6a09"
MOST_BYTES = 500_000  # as tests/site allows
FRAME_BYTES = 60_000  # the theme's menus, and what it writes around tables and headings


def other(title="There", slug="there-2a0e", **more):
    return make_run(slug, title, **more)


def on(record, slug, title):
    return {**record, "machine": {**record["machine"], "slug": slug, "title": title}}


def months(count, **more):
    return [
        make_run(date=f"20{10 + i // 12}-{1 + i % 12:02d}-01T00:00:00Z", run_id=f"{i:016x}", **more)
        for i in range(count)
    ]


def test_text_is_shown_as_it_is_by_markdown():
    assert plain("a | b") == "a \\| b"
    assert plain("<b>{x}_*$`") == "\\<b\\>\\{x\\}\\_\\*\\$\\`"
    assert plain("one\ntwo") == "one two"


def test_a_table_keeps_its_columns_whatever_a_machine_is_called(record):
    odd = on(record, MINE, "A | <b>B</b>")
    page = machines_page(CHAPTER, [odd], MINE)
    text = re.sub(r"(?s)<div class=\"figure\">.*?</div>", "", page)
    assert "## This machine: A \\| \\<b\\>B\\</b\\>" in text
    assert not re.search(r"(?<!\\)<", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
    assert "<b>" not in page


def test_a_chapter_has_a_label_a_figure_and_every_number_of_every_record(record):
    records = [on(record, "there-2a0e", "There"), on(record, MINE, "Here")]
    page = machines_page(CHAPTER, records, MINE)
    assert page.startswith(f"(machines-{CLAIM})=\n# By machine: Decode is bandwidth-bound\n")
    assert page.count("<svg") == 1
    assert page.index("\n## This machine: Here") < page.index("\n## There")
    assert page.count("| batch 8 / batch 1 | ✓ supported | 1.20 [1.10, 1.30] | 1.10 | 2.97") == 2
    assert page.count("| control: prefill | ✓ supported | 7.00 [6.00, 8.00] | 8.00 |") == 2
    not_run = machines_page(ANOTHER, records, MINE)
    assert not_run.startswith("(machines-another)=\n# By machine: Another\n")
    assert not_run.endswith("\n\nNot run yet.\n")


def test_the_numbers_of_a_chapter_that_simulates_are_called_simulated(record):
    hardware = [{"name": "H100", "source": "its data sheet"}]
    simulated = {**record, "simulated": {"hardware": hardware, "num_seeds": 6}}
    for each, done in ((record, "measured"), (simulated, "simulated")):
        page = machines_page(CHAPTER, [on(each, MINE, "Here")], MINE)
        text = re.sub(r"(?s)<div class=\"figure\">.*?</div>", "", page)
        assert f"| what | says | {done}, 95% | claim expects |" in text
        assert f"one machine that {done} it" in page


def test_what_was_measured_here_is_told_from_what_came_with_the_book():
    runs = [make_run(), other()]
    theirs = {(CLAIM, "there-2a0e")}
    assert machines_section(runs, MINE, theirs)[0] == "Measured here: Here. The book's: There.\n"
    both = theirs | {(CLAIM, MINE)}
    assert machines_section(runs, MINE, both)[0] == "This machine: Here. Others: There.\n"
    assert machines_section(runs, MINE, None)[0] == "This machine: Here. Others: There.\n"
    assert machines_section(runs[:1], MINE, set())[0] == "Measured here: Here.\n"
    simulated = machines_section([make_run(setting={"simulated": {"seeds": 6}})], MINE, set())
    assert simulated[0] == "Simulated here: Here.\n"
    assert simulated[-1].startswith("No other machine has simulated this claim yet")
    theirs_alone = [other(setting={"simulated": {"seeds": 6}})]
    assert machines_section(theirs_alone, MINE, theirs)[0].endswith("has not simulated it.\n")
    nobody = machines_section(runs[1:], MINE, theirs)
    assert nobody[0] == "The book's: There. This machine has not measured it.\n"
    assert nobody[-1] == "This machine has no result for this claim to compare.\n"


def test_git_knows_which_records_came_with_the_book(tmp_path):
    assert committed_records(tmp_path) is None
    folder = tmp_path / "book" / "results" / CLAIM
    folder.mkdir(parents=True)
    for name in ("tracked", "new"):
        (folder / f"{name}.json").write_text("{}")
    for words in (["init", "-q"], ["add", f"book/results/{CLAIM}/tracked.json"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert committed_records(tmp_path) == {(CLAIM, "tracked")}


def test_only_what_overlaps_no_other_machine_is_surprising():
    near, far = ratio(2.5, 2.0, 3.0), ratio(6.0, 5.0, 7.0)
    runs = [make_run(), other(**{BATCH: near}), other("Far", "far-1111", **{BATCH: far})]
    told = (
        f"{BATCH} is 1.50 [1.25, 1.75], below every other machine; the nearest is There with "
        "2.50 [2.00, 3.00] (1.67-fold apart)"
    )
    assert surprises(runs, MINE) == f"**Surprising here:** {plain(told)}."
    assert surprises(runs, "far-1111").startswith(
        f"**Surprising here:** {BATCH} is 6.00 \\[5.00, 7.00\\], above every other machine"
    )
    touching = other(**{BATCH: ratio(2.0, 1.7, 3.0)})
    assert surprises([make_run(), touching, runs[2]], MINE).startswith("Nothing surprising here")


def test_machines_of_one_title_are_told_apart_by_their_marks():
    far, near = ratio(6.0, 5.0, 7.0), ratio(2.5, 2.0, 3.0)
    twins = [other(**{BATCH: near}), other(slug="there-9b9b", **{BATCH: far})]
    for runs in ([make_run(), *twins], [make_run(), *twins[::-1]]):
        assert "the nearest is There (2a0e) with 2.50" in surprises(runs, MINE)
        assert "below every other machine" in surprises(runs, MINE)
    among = make_run(**{BATCH: ratio(6.0, 5.5, 6.5)})
    assert surprises([among, *twins], MINE).startswith("Nothing surprising here")
    assert surprises([among, *twins[::-1]], MINE).startswith("Nothing surprising here")
    whose = machines_section([make_run(), *twins], MINE)[0]
    assert whose == "This machine: Here. Others: There (2a0e), There (9b9b).\n"
    whose = machines_section([make_run(), other(title="Here")], MINE)[0]
    assert re.fullmatch(r"This machine: Here \(\w+\)\. Others: Here \(2a0e\)\.\n", whose)


def test_another_verdict_is_surprising_too():
    runs = [make_run(outcome="refuted"), other(), other("X", "x-1111", outcome="void")]
    assert surprises(runs, MINE) == (
        "**Surprising here:** the verdict is refuted here and supported and void elsewhere."
    )
    assert surprises([make_run(outcome="void"), *runs[1:]], MINE).startswith("Nothing surprising")


def test_where_nothing_compares_the_page_says_so():
    assert surprises([make_run()], MINE).startswith("No other machine has measured this claim yet")
    unlike = other(**{SHARE: ratio(0.5, 0.4, 0.6)})
    del unlike.quantities[BATCH], unlike.expected[BATCH]
    assert surprises([make_run(), unlike], MINE).startswith("The other machines made this claim's")
    endless = make_run(**{BATCH: ratio(50.0, nan, nan)})
    assert surprises([endless, other()], MINE).startswith("Nothing surprising here")


def test_a_single_run_is_a_sentence_and_a_table():
    section = "\n".join(history_section([make_run()], []))
    assert section.startswith("One run so far, of 2026-11-30: ✓ supported.")
    assert "<svg" not in section
    assert "| 2026-11-30 | abc123 | ✓ supported | 1.50 [1.25, 1.75] |" in section


def test_predictions_stand_open_and_the_rest_is_folded():
    control = {"control": ratio(3.0, 2.0, 4.0), "reached, decode x1": ratio(0.5, 0.4, 0.6)}
    runs = months(3, **control, **{TIME: ratio(2.0, 1.0, 3.0)})
    text = "\n".join(history_section(runs, months(1)))
    opened, _, folded = text.partition("<details")
    assert opened.count("<svg") == 1
    assert f"<p>{BATCH}: now 1.50 [1.25, 1.75], level with the baseline</p>" in opened
    assert folded.count("<svg") == 3
    for summary in ("Controls (1)", "Share of the possible, by step (1)", "Time, by step (1)"):
        assert f"<summary>{summary}</summary>" in folded
    assert "\n\n" not in text[text.index("<details") : text.rindex("</details>")].replace(
        "</details>\n\n", ""
    )  # an empty line would end the HTML


def test_the_table_shows_the_last_ten_runs_newest_first():
    runs = months(12)
    rows = [row for row in history_section(runs, [])[-2].splitlines() if row.startswith("| 20")]
    assert [row[2:12] for row in rows] == [run.date[:10] for run in reversed(runs[2:])]


def test_a_prediction_that_a_run_lacks_is_not_measured():
    lacking = make_run(date="2026-12-01T00:00:00Z", **{SHARE: ratio(0.5, 0.4, 0.6)})
    del lacking.quantities[BATCH], lacking.expected[BATCH]
    text = "\n".join(history_section([make_run(), lacking], []))
    assert "| not measured | 1.50 [1.25, 1.75] |" in text
    assert "| 0.500 [0.400, 0.600] | not measured |" in text
    assert f"<p>{BATCH}: 1.50 [1.25, 1.75] in one run</p></div>" in text


def test_a_hundred_runs_are_capped_and_the_page_says_so():
    text = "\n".join(history_section(months(100), []))
    assert text.startswith("The figures show the last 60 of 100 runs.")
    assert "60 runs from 2013-05-01 to 2018-04-01" in text


def test_a_large_history_shows_fewer_runs():
    many = {f"time, step {i}": ratio(1.0 + i, 0.5, 9.0) for i in range(40)}
    slugs = [f"m-{i:04d}" for i in range(6)]
    runs = [
        make_run(slug, slug, run.date, run_id=run.run_id, **many)
        for slug in slugs
        for run in months(70)
    ]
    page = history_page(CHAPTER, runs, [], slugs[0])
    assert "The figures show the last 60 of 70" not in page
    assert page.count("of 70 runs.") == len(slugs)
    assert page.index("\n## This machine: m-0000") < page.index("\n## m-0001")


def built_bytes(page):
    """Of the page as it is served: its figures slimmed, in the frame that the theme gives it."""
    body = slim(MarkdownIt().enable("table").render(page))
    return len(body.encode()) + FRAME_BYTES


@pytest.fixture(scope="module")
def recorded():
    records, problems = load_all(ROOT / "book" / "results")
    assert not problems
    return records


def copies(record, number):
    return [on(record, f"m-{i:04d}", f"A machine of two cores, {i}") for i in range(number)]


def headings(page):
    return [line for line in page.splitlines() if line.startswith("## ")]


@pytest.mark.parametrize("number", [5, 10, 40])
def test_a_chapters_machines_stay_a_light_page_when_there_are_more(recorded, number):
    largest = max(recorded, key=lambda record: len(record["metrics"]))
    page = machines_page(Chapter(largest["claim"], "Title"), copies(largest, number), "m-0000")
    assert len(headings(page)) == number
    judged = re.findall(r"\| [✓✗?∅] \w+ \|", page)  # a fresh run may decide otherwise
    assert len(judged) == number * len(largest["metrics"])
    assert built_bytes(page) < MOST_BYTES


@pytest.mark.parametrize("number", [5, 10, 40])
def test_a_chapters_history_stays_a_light_page_when_there_are_more_machines(recorded, number):
    largest = max(map(run_of, recorded), key=lambda run: len(run.quantities))
    machines = [{"slug": f"{i}", "title": f"{i}", "host": f"{i}"} for i in range(number)]
    runs = [
        replace(largest, date=month.date, run_id=f"{i}-{month.run_id}", machine=machine)
        for month in months(60)
        for i, machine in enumerate(machines)
    ]
    page = history_page(Chapter(largest.claim, "Title"), runs, [], "0")
    assert len(headings(page)) == number
    drawn = min(number, MOST_MACHINES)
    assert page.count("<svg") == drawn * len(largest.quantities)
    assert page.count("Figures and earlier runs are of 12 other machines.") == number - drawn
    assert page.count("| date |") == number
    assert built_bytes(page) < MOST_BYTES


def test_a_history_of_nothing_has_its_label_and_says_so():
    page = history_page(CHAPTER, [], [], MINE)
    assert page.startswith(f"(history-{CLAIM})=\n# History: Decode is bandwidth-bound\n")
    assert page.endswith("\n\nNot run yet.\n")


def test_the_overview_of_histories_has_the_last_verdicts_of_each_machine():
    outcomes = ["refuted", "void", *["supported"] * 9, "inconclusive"]
    runs = [replace(run, outcome=each) for run, each in zip(months(12), outcomes, strict=True)]
    rows = history_overview([CHAPTER, ANOTHER], [*reversed(runs), other()], MINE).splitlines()
    assert rows[0] == "| claim | This machine: Here | There |"
    assert rows[2] == f"| [{CHAPTER.title}](history/{CLAIM}.md) | … ✓✓✓✓✓✓✓✓✓? | ✓ |"
    assert rows[3] == "| [Another](history/another.md) | not run | not run |"


def test_what_is_surprising_here_leads_to_each_chapters_machines(record):
    records = [on(record, MINE, "Here"), on(record, "there-2a0e", "There")]
    nothing = "no verdict and no figure lies apart from those of all other machines."
    assert surprising_here([CHAPTER], records, MINE) == f"Nothing: {nothing}"
    nobody = "Nothing to compare: no other machine has a record of these claims."
    assert surprising_here([CHAPTER], records[:1], MINE) == nobody
    assert surprising_here([CHAPTER], records, "nowhere-0000") == nobody
    records[1]["verdict"] = {"outcome": "refuted", "reason": "r"}
    assert surprising_here([ANOTHER, CHAPTER], records, MINE) == (
        f"- [{CHAPTER.title}](results_by_machine/{CLAIM}.md): the verdict is supported here and "
        "refuted elsewhere."
    )


def test_a_baseline_is_that_of_its_own_machine_and_chapter():
    runs = months(2) + [other(date=run.date, run_id=run.run_id[::-1]) for run in months(2)]
    page = history_page(CHAPTER, runs, [other(**{BATCH: ratio(3.0, 2.0, 4.0)})], MINE)
    _, here, there = page.split("\n## ")
    assert "the baseline" not in here
    assert "50% below the baseline" in there


def test_records_without_a_history_stand_in_it_once(record):
    run = run_of(record)
    assert with_records([run], [record]) == [run]
    assert with_records([], [record]) == [run]


def test_an_unusable_file_is_named():
    assert problems_note([]) == ""
    assert problems_note(["a_b: line 3: <x>"]) == "Not shown: a\\_b: line 3: \\<x\\>."


def test_a_chapters_strip_leads_to_its_place_on_both_pages(record):
    strip = provenance(record)
    assert f"{{ref}}`compare with other machines <machines-{CLAIM}>`" in strip
    assert f"{{ref}}`history <history-{CLAIM}>`" in strip


@pytest.mark.parametrize("study", [None, "not JSON"])
def test_the_books_own_pages_are_filled_with_and_without_a_study(make_project, record, study):
    project = make_project()
    (project.root / "_config.yml").write_text("repository:\n  url: https://example.org/b\n")
    (project.root / "book").mkdir()
    names = ("results_by_machine.md", "history.md", "how_far_to_trust.md")
    for name in names:
        (project.root / "book" / name).write_text((ROOT / "book" / name).read_text())
    contents = json.loads((project.root / "_toc.yml").read_text())
    files = [{"file": f"book/{name.removesuffix('.md')}"} for name in names[:2]]
    contents["parts"].append({"caption": "Reference", "chapters": files})
    (project.root / "_toc.yml").write_text(json.dumps(contents))
    if study:
        (project.results / "trust").mkdir(parents=True)
        (project.results / "trust" / "x.json").write_text(study)
    source = stage(project, {}, {}, [{**record, "claim": "first"}], record["machine"]["slug"])
    chapters = ["notebooks/first", "notebooks/second"]
    assert page_entries(source) == [
        *("book/index", *chapters, "book/results_by_machine"),
        *("book/results_by_machine/first", "book/results_by_machine/second"),
        *("book/history", "book/history/first", "book/history/second"),
    ]
    pages = {name: (source / "book" / name).read_text() for name in names}
    assert not any(re.search("<!--", page) for page in pages.values())
    for chapter in ("first", "second"):
        for name, label in (("results_by_machine", "machines"), ("history", "history")):
            assert f"]({name}/{chapter}.md)" in pages[f"{name}.md"]
            own = (source / "book" / name / f"{chapter}.md").read_text()
            assert own.startswith(f"({label}-{chapter})=\n# ")
    assert "One run so far" in (source / "book" / "history" / "first.md").read_text()
    assert "`prefill-decode trust` measures it" in pages["how_far_to_trust.md"]
    assert ("Not shown: trust/x.json" in pages["how_far_to_trust.md"]) == bool(study)
    assert json.dumps(str(project.results)) not in json.dumps(pages)


def test_a_simulated_record_is_said_to_be_so_wherever_it_stands(simulated_record):
    strip = provenance(simulated_record)
    assert "Simulated with 8 seeds, not measured, for Elsewhere (a data sheet)" in strip
    assert "Measured on" not in strip
    assert "2 s of simulating" in strip
    page = machines_page(Chapter("pools_scale_apart", "Pools"), [simulated_record], "nowhere")
    assert "simulated, not measured" in page
    assert "simulated for data-sheet hardware" in page
