"""The pages on results: every number is that of its run, and odd runs still make a page."""

import json
import re
import subprocess
from math import nan

import pytest

from prefill_decode.book import stage
from prefill_decode.book.pages import provenance
from prefill_decode.book.results_pages import (
    LARGEST_PAGE_BYTES,
    Chapter,
    committed_records,
    history_page,
    history_section,
    machines_section,
    plain,
    problems_note,
    results_page,
    surprises,
    with_records,
)
from prefill_decode.results import run_of
from tests.conftest import ROOT
from tests.results_by_hand import BATCH, CLAIM, SHARE, TIME, make_run, ratio

CHAPTERS = [Chapter(CLAIM, "Decode is bandwidth-bound")]
MINE = "here-6a09"


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
    page = results_page(CHAPTERS, [odd], MINE)
    text = re.sub(r"(?s)<div class=\"figure\">.*?</div>", "", page)
    assert "### This machine: A \\| \\<b\\>B\\</b\\>" in text
    assert not re.search(r"(?<!\\)<", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
    assert "<b>" not in page


def test_a_chapter_has_a_label_a_figure_and_every_number_of_every_record(record):
    records = [on(record, "there-2a0e", "There"), on(record, MINE, "Here")]
    page = results_page(CHAPTERS, records, MINE)
    assert page.startswith(f"(machines-{CLAIM})=\n## Decode is bandwidth-bound\n")
    assert page.count("<svg") == 1
    assert page.index("### This machine: Here") < page.index("### There")
    assert page.count("| batch 8 / batch 1 | ✓ supported | 1.20 [1.10, 1.30] | 1.10 | 2.97") == 2
    assert page.count("| control: prefill | ✓ supported | 7.00 [6.00, 8.00] | 8.00 |") == 2
    not_run = results_page([Chapter("another", "Another")], records, MINE)
    assert not_run == "(machines-another)=\n## Another\n\nNot run yet.\n"


def test_the_numbers_of_a_chapter_that_simulates_are_called_simulated(record):
    hardware = [{"name": "H100", "source": "its data sheet"}]
    simulated = {**record, "simulated": {"hardware": hardware, "num_seeds": 6}}
    for each, done in ((record, "measured"), (simulated, "simulated")):
        page = results_page(CHAPTERS, [on(each, MINE, "Here")], MINE)
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


def test_a_large_history_shows_fewer_runs_and_never_too_many_bytes():
    many = {f"time, step {i}": ratio(1.0 + i, 0.5, 9.0) for i in range(40)}
    slugs = [f"m-{i:04d}" for i in range(6)]
    runs = [
        make_run(slug, slug, run.date, run_id=run.run_id, **many)
        for slug in slugs
        for run in months(70)
    ]
    page = history_page(CHAPTERS, runs, [], slugs[0])
    assert len(page.encode()) <= LARGEST_PAGE_BYTES
    assert "The figures show the last 60 of 70" not in page
    assert page.count("of 70 runs.") == len(slugs)
    assert page.index("### This machine: m-0000") < page.index("### m-0001")


def test_a_history_of_nothing_has_its_label_and_says_so():
    assert history_page(CHAPTERS, [], [], MINE) == (
        f"(history-{CLAIM})=\n## Decode is bandwidth-bound\n\nNot run yet.\n"
    )


def test_a_baseline_is_that_of_its_own_machine_and_chapter():
    runs = months(2) + [other(date=run.date, run_id=run.run_id[::-1]) for run in months(2)]
    page = history_page(CHAPTERS, runs, [other(**{BATCH: ratio(3.0, 2.0, 4.0)})], MINE)
    here, there = page.split("### There")
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
    if study:
        (project.results / "trust").mkdir(parents=True)
        (project.results / "trust" / "x.json").write_text(study)
    source = stage(project, {}, {}, [{**record, "claim": "first"}], record["machine"]["slug"])
    pages = {name: (source / "book" / name).read_text() for name in names}
    assert not any(re.search("<!--", page) for page in pages.values())
    for chapter in ("first", "second"):
        assert f"(machines-{chapter})=" in pages["results_by_machine.md"]
        assert f"(history-{chapter})=" in pages["history.md"]
    assert "One run so far" in pages["history.md"]
    assert "`prefill-decode trust` measures it" in pages["how_far_to_trust.md"]
    assert ("Not shown: trust/x.json" in pages["how_far_to_trust.md"]) == bool(study)
    assert json.dumps(str(project.results)) not in json.dumps(pages)


def test_a_simulated_record_is_said_to_be_so_wherever_it_stands(simulated_record):
    strip = provenance(simulated_record)
    assert "Simulated with 8 seeds, not measured, for Elsewhere (a data sheet)" in strip
    assert "Measured on" not in strip
    assert "2 s of simulating" in strip
    page = results_page([Chapter("pools_scale_apart", "Pools")], [simulated_record], "nowhere")
    assert "simulated, not measured" in page
