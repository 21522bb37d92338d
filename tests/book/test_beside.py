"""A chapter's machines side by side, and what a reader is told of surprises."""

import json

import pytest

from prefill_decode.book.beside import beside_others
from prefill_decode.book.surprises import NOBODY, NOTHING, findings, surprise_lines
from prefill_decode.cli.measuring import print_surprises
from tests.results_by_hand import BATCH, make_run, ratio

NAMES = {"here": "Here", "there": "There", "far": "Far | away"}


def on(record, slug, outcome="supported", **measured):
    """A record of `slug`, its one prediction measured as given."""
    machine = {**record["machine"], "slug": slug, "title": NAMES[slug]}
    metrics = [dict(metric) for metric in record["metrics"]]
    metrics[0]["measured"] = {**metrics[0]["measured"], **measured}
    verdict = {"outcome": outcome, "reason": "r"}
    return {**record, "machine": machine, "metrics": metrics, "verdict": verdict}


@pytest.fixture
def here(record):
    return on(record, "here", median=1.2, low=1.1, high=1.3)


@pytest.fixture
def there(record):
    return on(record, "there", "refuted", median=6.0, low=5.0, high=7.0)


def table_rows(text):
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


def test_every_machine_has_its_row_this_one_first_with_claim_and_rival(here, there, record):
    claim = record["claim"]
    text = beside_others(claim, [there, here], "here", NAMES)
    assert text.startswith("## This machine beside others\n")
    prediction = "| batch 8 / batch 1 | "
    assert table_rows(text) == [
        "| **this machine: Here** | ✓ supported |  |  |",
        prediction + "1.20 [1.10, 1.30] | 1.10 | 8.00 |",
        "| **There** | ✗ refuted |  |  |",
        prediction + "6.00 [5.00, 7.00] | 1.10 | 8.00 |",
    ]
    assert f"{{ref}}`all machines <machines-{claim}>`" in text


def test_what_lies_apart_is_said_below_the_table(here, there, record):
    claim = record["claim"]
    text = beside_others(claim, [there, here], "here", NAMES)
    assert "Apart from all others: the verdict is supported here and refuted elsewhere; " in text
    assert "below the other machine, There with 6.00" in text
    alike = on(record, "there", median=1.25, low=1.15, high=1.4)
    text = beside_others(claim, [alike, here], "here", NAMES)
    assert "Nothing on this machine lies apart from all others." in text


def test_a_machine_alone_or_without_a_record_is_told_so(here, there, record):
    claim = record["claim"]
    assert beside_others("another", [here], "here", NAMES) == ""
    alone = beside_others(claim, [here], "here", NAMES)
    assert alone.startswith("## On other machines\n\nNo other machine has a record")
    assert f"{{ref}}`all machines <machines-{claim}>`" in alone
    assert not table_rows(alone)  # the verdict above has them
    text = beside_others(claim, [there], "here", NAMES)
    assert text.startswith("## On other machines\n")
    assert "This machine has no record of this claim." in text
    assert "this machine:" not in text


def test_a_machines_name_cannot_break_the_table(record):
    text = beside_others(record["claim"], [on(record, "far")], "here", NAMES)
    assert table_rows(text)[0].startswith("| **Far \\| away** | ✓ supported |")


def test_simulated_figures_are_not_called_measured(simulated_record):
    slug = simulated_record["machine"]["slug"]
    text = beside_others("pools_scale_apart", [simulated_record], "here", {slug: "There"})
    assert "verdict; simulated, 95% |" in text
    assert "measured" not in text


def test_surprises_are_a_line_each_in_the_order_of_the_chapters(here, there, record):
    later = [{**each, "claim": "another"} for each in (here, there)]
    chapters = [record["claim"], "another", "not run"]
    lines = surprise_lines(chapters, [here, later[0]], "here", [there, later[1]])
    assert [line.split(":")[0] for line in lines] == [
        *["  ! decode_is_bandwidth_bound"] * 2,
        *["  ! another"] * 2,
    ]
    assert lines[0].endswith("the verdict is supported here and refuted elsewhere")
    assert lines == surprise_lines(chapters, [later[0], here], "here", [later[1], there])


def test_without_a_surprise_or_a_comparison_a_line_says_so(here, record):
    alike = on(record, "there", median=1.25, low=1.15, high=1.4)
    claims = [record["claim"]]
    assert surprise_lines(claims, [here], "here", [alike]) == [f"  {NOTHING}"]
    assert surprise_lines(claims, [here], "here", []) == [f"  {NOBODY}"]
    assert surprise_lines(claims, [], "here", [alike]) == [f"  {NOBODY}"]
    stale = on(record, "here", median=6.0, low=5.0, high=7.0)
    assert surprise_lines(claims, [here], "here", [alike, stale]) == [f"  {NOTHING}"]


def test_the_command_ends_with_what_is_surprising_beside_the_books_records(
    make_project, record, machine, capsys
):
    project = make_project()
    slug = record["machine"]["slug"]
    mine = {**record, "claim": "first"}
    theirs = {**mine, "machine": {**record["machine"], "slug": "there-2a0e", "title": "There"}}
    theirs["metrics"] = on(record, "there", median=1.5, low=1.4, high=1.6)["metrics"]
    path = project.root / "book" / "results" / "first" / "there-2a0e.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(theirs))
    assert slug == machine.slug
    print_surprises(project, project.chapters(), [mine], machine)
    heading, line = capsys.readouterr().out.strip().splitlines()
    assert heading == f"surprising on {machine.title}, beside the book's other machines:"
    assert line.startswith("  ! first: batch 8 / batch 1 is 1.20 [1.10, 1.30], below the other")


def test_figures_of_a_void_run_do_not_count():
    far = {BATCH: ratio(6.0, 5.0, 7.0)}
    runs = [make_run(outcome="void"), make_run("there-2a0e", "There", **far)]
    assert findings(runs, "here-6a09") == ["the verdict is void here and supported elsewhere"]
    runs = [make_run(), make_run("there-2a0e", "There", outcome="void", **far)]
    assert findings(runs, "here-6a09") == ["the verdict is supported here and void elsewhere"]


def test_simulated_figures_are_compared_at_equal_settings_only():
    def run(slug, parameters, **measured):
        setting = {"simulated": {"hardware": []}, "parameters": parameters}
        return make_run(slug, slug, setting=setting, **measured)

    far = {BATCH: ratio(6.0, 5.0, 7.0)}
    assert findings([run("here-6a09", {"a": 1}), run("there", {"a": 2}, **far)], "here-6a09") == []
    assert len(findings([run("here-6a09", {}), run("there", {}, **far)], "here-6a09")) == 1


def test_what_three_digits_do_not_tell_apart_is_no_surprise():
    near, nearer = ratio(1.0001, 1.0001, 1.0001), ratio(1.0002, 1.0002, 1.0002)
    runs = [make_run(**{BATCH: near}), make_run("there-2a0e", "There", **{BATCH: nearer})]
    assert findings(runs, "here-6a09") == []


def test_a_prediction_that_one_machine_lacks_is_no_surprise():
    runs = [make_run(), make_run("there-2a0e", "There", **{BATCH: ratio(6.0, 5.0, 7.0)})]
    assert len(findings(runs, "here-6a09")) == 1
    del runs[1].quantities[BATCH]
    assert findings(runs, "here-6a09") == []
    assert findings(runs[1:], "here-6a09") == []
