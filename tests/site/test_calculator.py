"""The calculator in a real Chromium: its numbers are the library's, its fields and links behave."""

import itertools
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from math import isclose

import pytest
from playwright.sync_api import expect

from prefill_decode.book.calculator_page import NUMBERS, accelerator_data, model_data, word
from prefill_decode.capacity import sequences_that_fit
from prefill_decode.crossover import predicted_crossover
from prefill_decode.crossover_atlas import crossovers
from prefill_decode.hardware import Hardware, accelerator, accelerators
from prefill_decode.hf_config import get, shipped
from prefill_decode.model_spec import Experts, LatentAttention, ModelSpec
from prefill_decode.roofline import StepWork, Work, step_work
from prefill_decode.step import Chunk
from prefill_decode.transfer_cost import least_handover, moved_bytes
from prefill_decode.units import (
    GIGABIT,
    format_bits_per_s,
    format_bytes,
    format_seconds,
    format_si,
    format_significant,
)
from tests.conftest import ROOT
from tests.site.conftest import SIZES

pytestmark = pytest.mark.browser
PAGE = "book/calculator.html"
ARITHMETIC = {
    "bfloat16": "bfloat16",
    "float8": "float8",
    "fp8": "float8",
    "int8": "bfloat16",
    "int4": "bfloat16",
    "mxfp4": "bfloat16",
}
SAME = 1e-9  # relative
LARGEST_BYTES = 500_000  # of the page with its data, script and style
BOUNDS = {"compute": "arithmetic", "bandwidth": "memory"}
LIMITS = ("limited_by", "weights_limited_by", "attention_limited_by")
FORMATS = {
    "bytes": format_bytes,
    "flops": lambda value: format_si(value, "FLOP"),
    "intensity": lambda value: f"{format_significant(value)} FLOP/B",
    "bits_per_s": format_bits_per_s,
    "seconds": format_seconds,
    "count": lambda value: f"{value:,}",
    "number": format_significant,
    "tokens_per_s": lambda value: f"{format_significant(value)} tokens/s",
    "bound": BOUNDS.__getitem__,
}


@dataclass(frozen=True)
class Choice:
    model: str = "llama-3.1-8b"
    accelerator: str = "H100 SXM"
    numbers: str = "bfloat16"
    devices: int = 1
    batch: int = 16
    context: int = 2048
    prompt: int = 2048
    link: float = 100

    @property
    def fields(self):
        return {**self.__dict__, "accelerator": word(self.accelerator)}


@cache
def typed(name, dtype):
    return get(name).with_dtype(dtype)


def hardware_of(choice, row):
    """All devices as one; None where no source prints the peak."""
    dtype = ARITHMETIC[choice.numbers]
    peak = row.peak_flops_per_s(dtype)
    if peak is None:
        return None
    bandwidth = choice.devices * row.bandwidth_bytes_per_s
    return Hardware(row.name, dtype, choice.devices * peak, bandwidth, row.source)


@cache
def batching_of(model, context, hardware):
    first, awake = crossovers(model, context, hardware)
    return {
        "crossover": predicted_crossover(model, context, hardware),
        "crossover_first": first,
        "crossover_all_awake": awake,
    }


def phase(work, hardware):
    found = {
        "flops": work.total.flops,
        "bytes": work.total.bytes,
        "intensity_flops_per_byte": work.total.intensity_flops_per_byte,
    }
    if hardware is None:
        return found | dict.fromkeys((*LIMITS, "weights_s", "attention_s", "least_s", "floor_s"))
    parts = (work.total, work.weights, work.attention)
    return found | {
        **{name: part.limited_by(hardware) for name, part in zip(LIMITS, parts, strict=True)},
        "weights_s": work.weights.least_time_s(hardware),
        "attention_s": work.attention.least_time_s(hardware),
        "least_s": work.least_time_s(hardware),
        "floor_s": work.total.least_time_s(hardware),
    }


def moving(choice, model, hardware):
    link = choice.link * GIGABIT
    moved = moved_bytes(model, choice.prompt)
    found = {"moved_bytes": moved, "transfer_s": moved / link}
    unknown = ("share", "break_even_bytes_per_s", "serial_s", "layered_s", "exposed_s")
    if hardware is None:
        return found | dict.fromkeys(unknown)
    handover = least_handover(model, hardware, choice.prompt)
    return found | {
        "share": handover.share(link),
        "break_even_bytes_per_s": handover.break_even_bytes_per_s,
        "serial_s": handover.serial_s(link),
        "layered_s": handover.layered_s(link),
        "exposed_s": handover.exposed_s(link),
    }


def decode_work(model, context, batch):
    """A decode step, sequence by sequence; where these are very many, one of them so many times."""
    if batch <= 512:
        return step_work(model, [Chunk(1, context)] * batch)
    rows = step_work(model, [Chunk(batch, samples_token=False)]).weights
    one = step_work(model, [Chunk(1, context)]).attention
    head = 2 * batch * model.lm_head_params, model.lm_head_params * model.bytes_per_value
    weights = Work(rows.flops + head[0], rows.bytes + head[1])
    return StepWork(weights, Work(batch * one.flops, batch * one.bytes))


def tokens_per_s(choice, model, hardware, fit):
    def step_s(batch):
        return decode_work(model, choice.context, batch).least_time_s(hardware)

    return {
        "tokens_per_s_each": 1 / step_s(choice.batch),
        "tokens_per_s": choice.batch / step_s(choice.batch),
        "tokens_per_s_full": fit / step_s(fit) if fit else fit,
    }


def expected(choice, model=None, row=None):
    """What the library says of a choice, in the shape of the script's answer.

    `model` and `row` stand in for those that ship."""
    model = model or typed(choice.model, choice.numbers)
    row = row or accelerator(choice.accelerator)
    hardware = hardware_of(choice, row)
    capacity = choice.devices * row.capacity_bytes
    fit = sequences_that_fit(model, capacity, choice.context)
    rates = ("crossover", "crossover_first", "crossover_all_awake")
    rates += ("tokens_per_s_each", "tokens_per_s", "tokens_per_s_full")
    batching = dict.fromkeys(rates)
    if hardware is not None:
        batching = batching_of(model, choice.context, hardware)
        batching = batching | tokens_per_s(choice, model, hardware, fit)
    return {
        "hardware": {
            "peak_flops_per_s": hardware and hardware.peak_flops_per_s,
            "bandwidth_bytes_per_s": choice.devices * row.bandwidth_bytes_per_s,
            "ridge_flops_per_byte": hardware and hardware.ridge_flops_per_byte,
        },
        "prefill": phase(step_work(model, [Chunk(choice.prompt)]), hardware),
        "decode": phase(decode_work(model, choice.context, choice.batch), hardware),
        "memory": {
            "capacity_bytes": capacity,
            "weight_bytes": model.weight_bytes,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "kv_bytes": model.kv_bytes(choice.context),
            "sequences_that_fit": fit,
        },
        "batching": batching,
        "moving": moving(choice, model, hardware),
    }


def flat(results):
    return {f"{part}.{key}": v for part, values in results.items() for key, v in values.items()}


def agree(value, right, near):
    """Equal, counts exactly; `near` is an absolute slack for what is a small difference."""
    if right is None or isinstance(right, str):
        return value == right
    if isinstance(right, int) and abs(right) < 2**53:
        return value == right
    return value is not None and isclose(value, right, rel_tol=SAME, abs_tol=near)


def differences(choice, answer, model=None, row=None):
    right, got = flat(expected(choice, model, row)), flat(answer)
    assert got.keys() == right.keys()
    # What is not hidden of a transfer is a difference of two long times: as good as they are.
    near = {"moving.exposed_s": SAME * (right["moving.layered_s"] or 0)}
    return [
        (choice, key, got[key], right[key])
        for key in right
        if not agree(got[key], right[key], near.get(key, 0.0))
    ]


def answers(page, choices, models=(), rows=()):
    """The script's answers to many choices, through its pure function.

    `models` and `rows` come on top of those in the page."""
    return page.evaluate(
        """([choices, models, accelerators]) => {
            const data = JSON.parse(document.getElementById("calculator-data").textContent);
            data.models.push(...models);
            data.accelerators.push(...accelerators);
            return choices.map(each => window.prefillDecodeCalculator.calculate(data, each));
        }""",
        [
            [choice.fields for choice in choices],
            [model_data(model) for model in models],
            [accelerator_data(row) for row in rows],
        ],
    )


def possible(choice):
    return choice.numbers != "mxfp4" or get(choice.model).experts is not None


def grid():
    """Every model with every number type on one accelerator, with two of them on others."""
    others = ("L4", "MI300X", "A100 SXM 80GB", "RTX PRO 6000 Server")
    pairs = [("H100 SXM", numbers) for numbers in ARITHMETIC]
    pairs += itertools.product(others, ("bfloat16", "float8"))
    shapes = [(1, 1, 1, 1, 0.5), (1, 7, 129, 127, 100), (8, 96, 8191, 4096, 400)]
    names = [model.name for model in shipped()]
    for name, (row, numbers), shape in itertools.product(names, pairs, shapes):
        choice = Choice(name, row, numbers, *shape)
        if possible(choice):
            yield choice


def test_every_number_is_the_librarys_for_every_model_and_number_type(open_page):
    choices = list(grid())
    assert len(choices) > 600
    wrong = []
    for choice, answer in zip(choices, answers(open_page(PAGE), choices), strict=True):
        wrong += differences(choice, answer)
    assert wrong[:5] == []


SHAPE = {
    "num_layers": 5,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 777,
    "tied_embeddings": False,
}
LATENT = LatentAttention(None, 24, 10, 6, 12)  # queries straight from the hidden values
GATED_EXPERTS = Experts(6, 2, 48, shared_intermediate_size=64, shared_gate=True, dense_layers=(0,))
UNLIKE_THOSE_THAT_SHIP = [
    ModelSpec("ungated", **SHAPE, gated_mlp=False, windows=(4, None, 4, 9, None)),
    ModelSpec("latent", **SHAPE, latent=LATENT),
    ModelSpec("experts", **SHAPE, experts=GATED_EXPERTS),
    ModelSpec("ungated experts", **SHAPE, experts=GATED_EXPERTS, gated_mlp=False),
]
# The second's ridge lies below the intensity of a single sequence: all of a step is arithmetic.
UNLIKE_CHIPS = [
    replace(accelerator("L4"), name="even", bandwidth_bytes_per_s=1e12, capacity_bytes=10**9 + 7),
    replace(accelerator("L4"), name="slow", peak_bf16_flops_per_s=2e11, capacity_bytes=1000),
]


def test_shapes_and_chips_unlike_those_that_ship_agree_as_well(open_page):
    page = open_page(PAGE)
    for model, row in itertools.product(UNLIKE_THOSE_THAT_SHIP, UNLIKE_CHIPS):
        choice = Choice(model.name, row.name, "bfloat16", 1, 5, 33, 70, 3.3)
        (answer,) = answers(page, [choice], [model], [row])
        assert differences(choice, answer, model, row) == []


def test_every_accelerator_has_the_ceilings_and_the_memory_of_its_data_sheet(open_page):
    page = open_page(PAGE)
    choices = [Choice(accelerator=row.name, numbers=n) for row in accelerators() for n in ("fp8",)]
    choices += [Choice(accelerator=row.name) for row in accelerators()]
    for choice, answer in zip(choices, answers(page, choices), strict=True):
        assert differences(choice, answer) == []


def test_the_number_types_are_those_that_were_compared():
    assert {each.dtype: each.arithmetic for each in NUMBERS} == ARITHMETIC


def choose(page, choice):
    for name, value in choice.fields.items():
        field = page.locator(f"#calculator-{name}")
        if name in ("model", "accelerator", "numbers"):
            field.select_option(value)
        else:
            field.fill(str(value))


def shown(page):
    """What each cell of the tables says: its text, the number behind it, its format."""
    return page.evaluate(
        """() => [...document.querySelectorAll("[data-shows]")].map(cell => [
            cell.dataset.shows, cell.dataset.as, cell.textContent,
            cell.querySelector("data") ? cell.querySelector("data").value : null])"""
    )


def assert_shows(page, choice):
    right = flat(expected(choice))
    cells = shown(page)
    unshown = {"hardware.peak_flops_per_s", "hardware.bandwidth_bytes_per_s"}
    assert {key for key, *_ in cells} == right.keys() - unshown
    for key, how, text, number in cells:
        if right[key] is None:
            assert (text, number) == ("not published", None), key
            continue
        assert text == FORMATS[how](right[key]), key
        assert number == right[key] or isclose(float(number), right[key], rel_tol=1e-8), key


UNKNOWN_AT_FLOAT8 = "A100 SXM 80GB"
SHOWN = [
    Choice(),
    Choice("gemma-3-1b", "L4", "bfloat16", 1, 3, 1000, 700, 25),
    Choice("deepseek-v3", "MI300X", "fp8", 8, 64, 4096, 8192, 400.5),
    Choice("gpt-oss-20b", "B200 SXM", "mxfp4", 1, 200, 333, 1, 0.25),
    Choice("qwen2.5-7b", UNKNOWN_AT_FLOAT8, "float8"),
    Choice("llama-3.1-70b", "H100 SXM", "int4", 2, 1, 1, 100_000),
    Choice("llama-3.1-70b", "L4"),  # the weights alone do not fit
]


@pytest.mark.parametrize("choice", SHOWN, ids=lambda each: f"{each.model}-{each.numbers}")
def test_what_is_chosen_in_the_fields_is_what_the_tables_show(open_page, choice):
    page = open_page(PAGE)
    choose(page, choice)
    assert_shows(page, choice)
    assert page.complaints == []


def test_a_peak_that_no_source_prints_is_said_to_be_unpublished(open_page):
    page = open_page(PAGE + "?accelerator=rtx-pro-6000-server")
    texts = {key: text for key, _, text, _ in shown(page)}
    for key in ("prefill.least_s", "decode.least_s", "batching.crossover", "decode.limited_by"):
        assert texts[key] == "not published"
    assert texts["memory.kv_bytes_per_token"] == format_bytes(131072)
    expect(page.locator("#calculator-summary")).to_contain_text("No source prints")
    assert page.locator("#calculator-picture svg").count() == 0


def test_formats_round_as_the_librarys_do_ties_included(open_page):
    values = [0.125, 1.125, 20.25, 2.675, 999.5, 999.6, 1125, 0, 3.7e-15, 1.005, 0.99951, 12345.0]
    page = open_page(PAGE)
    got = page.evaluate(
        "values => values.map(v => ['number', 'bytes', 'seconds', 'bits_per_s', 'flops'].map("
        "name => window.prefillDecodeCalculator.formats[name](v)))",
        values,
    )
    names = ("number", "bytes", "seconds", "bits_per_s", "flops")
    assert got == [[FORMATS[name](value) for name in names] for value in values]


@pytest.mark.parametrize(
    ("field", "text", "rule"),
    [
        ("batch", "0", "Batch must be a whole number from 1 to 1,000,000; got “0”."),
        ("batch", "2.5", "got “2.5”"),
        ("context", "", "Context must be a whole number"),
        ("prompt", "10000001", "from 1 to 10,000,000"),
        ("prompt", "1e3", "got “1e3”"),
        ("devices", "-1", "must be a whole number"),
        ("link", "fast", "Link must be a number from 0.001 to 1,000,000; got “fast”."),
        ("link", "0", "got “0”"),
    ],
)
def test_an_unusable_field_says_so_beside_itself_and_blanks_the_results(
    open_page, field, text, rule
):
    page = open_page(PAGE)
    box, message = page.locator(f"#calculator-{field}"), page.locator(f"#calculator-{field}-error")
    before = shown(page)
    box.fill(text)
    expect(message).to_contain_text(rule)
    assert message.get_attribute("aria-live") == "polite"
    assert f"calculator-{field}-error" in box.get_attribute("aria-describedby")
    assert box.get_attribute("aria-invalid") == "true"
    assert {words for _, _, words, _ in shown(page)} == {"–"}
    assert page.locator("#calculator-picture svg").count() == 0
    expect(page.locator("#calculator-copy")).to_be_disabled()
    box.fill(box.evaluate("field => field.defaultValue"))
    expect(message).to_have_text("")
    assert box.get_attribute("aria-invalid") is None
    assert shown(page) == before


def test_experts_numbers_are_refused_for_a_model_without_experts(open_page):
    page = open_page(PAGE)
    page.locator("#calculator-numbers").select_option("mxfp4")
    said = "mxfp4 stores routed experts and llama-3.1-8b has none; take int4."
    expect(page.locator("#calculator-numbers-error")).to_have_text(said)
    page.locator("#calculator-model").select_option("gpt-oss-20b")
    expect(page.locator("#calculator-numbers-error")).to_have_text("")


def test_the_link_brings_the_choice_back(open_page, site):
    page = open_page(PAGE)
    choose(page, SHOWN[2])
    before, address = shown(page), page.url
    assert address == page.locator("#calculator-link-to-this").evaluate("link => link.href")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#calculator-copy").click()
    expect(page.locator("#calculator-copied")).to_have_text("Link copied.")
    assert page.evaluate("navigator.clipboard.readText()") == address
    again = open_page(address)
    assert shown(again) == before
    assert again.locator("#calculator-notes").is_hidden()
    again.reload()
    assert shown(again) == before


def test_where_copying_is_refused_the_page_says_where_the_link_is(open_page):
    page = open_page(PAGE)
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject('no'); }")
    page.locator("#calculator-copy").click()
    expect(page.locator("#calculator-copied")).to_contain_text("take the address from the link")


@pytest.mark.parametrize(
    ("query", "notes"),
    [
        ("model=gpt-9", ["Model must be one of the list; got “gpt-9”. Taken instead:"]),
        ("batch=-3&context=x", ["Batch must be", "Context must be"]),
        ("accelerator=%3Cb%3E", ["Accelerator must be one of the list; got “<b>”."]),
        ("numbers=mxfp4", ["mxfp4 stores routed experts"]),
        ("model=nothing&numbers=mxfp4", ["Model must be", "mxfp4 stores routed experts"]),
        ("contxt=5", ["“contxt” names no field"]),
        ("batch=" + "9" * 500, ["Batch must be a whole number"]),
        (
            "&".join(f"k{number}" for number in range(1005)),
            [*[f"“k{number}” names no field" for number in range(5)], "1,000 more name no field"],
        ),
        ("link=NaN&devices=%00", ["Accelerators that share the model must be", "Link must be"]),
    ],
)
def test_what_is_unusable_in_a_link_is_named_and_replaced(open_page, query, notes):
    page = open_page(f"{PAGE}?{query}")
    items = page.locator("#calculator-notes li").all_inner_texts()
    assert len(items) == len(notes)
    for item, note in zip(items, notes, strict=True):
        assert note in item
        assert len(item) < 200
    assert_shows(page, Choice())
    assert page.complaints == []


def test_start_over_restores_the_first_choice(open_page):
    page = open_page(PAGE + "?model=nothing&batch=5")
    choose(page, SHOWN[1])
    page.get_by_role("button", name="Start over").click()
    expect(page.locator("#calculator-model")).to_have_value(Choice().model)
    assert_shows(page, Choice())
    assert page.locator("#calculator-notes").is_hidden()


def test_the_keyboard_alone_reaches_every_field_and_changes_the_results(open_page):
    page = open_page(PAGE)
    before = shown(page)
    page.locator("#calculator-model").focus()
    seen = []
    for _ in range(11):
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.type"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.keyboard.press("Tab")
    order = ["model", "accelerator", "devices", "numbers", "prompt", "batch", "context", "link"]
    tools = ["calculator-link-to-this", "calculator-copy", "reset"]
    assert seen == [*(f"calculator-{name}" for name in order), *tools]
    page.locator("#calculator-model").focus()
    page.keyboard.press("ArrowDown")
    page.locator("#calculator-batch").focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("4")
    page.keyboard.press("Enter")  # no form is sent
    assert "batch=4" in page.url
    assert shown(page) != before


def test_every_field_has_a_label_and_every_table_its_headings(open_page):
    page = open_page(PAGE)
    for field in page.locator("#calculator-form :is(input, select)").all():
        assert field.evaluate("field => field.labels.length") == 1
    for table in page.locator("table.calculator").all():
        assert table.get_attribute("aria-label")
        assert table.locator("tbody th[scope=row]").count() == table.locator("tbody tr").count()
    rows = page.locator("table.calculator tbody th")
    assert rows.count() == rows.locator("small").count()


def test_the_picture_says_what_it_shows_and_follows_the_choice(open_page):
    page = open_page(PAGE)
    svg = page.locator("#calculator-picture svg")
    first = svg.get_attribute("aria-label")
    right = expected(Choice())
    assert f"a ridge at {FORMATS['intensity'](right['hardware']['ridge_flops_per_byte'])}" in first
    for name, side in (("decode", "on the memory slope"), ("prefill", "right of the ridge")):
        intensity = FORMATS["intensity"](right[name]["intensity_flops_per_byte"])
        assert f"{name} lies {side}, at {intensity}" in first
    page.locator("#calculator-prompt").fill("1")
    assert "prefill lies on the memory slope" in svg.get_attribute("aria-label")


def test_points_and_words_stay_inside_the_picture(open_page):
    page = open_page(PAGE)
    for choice in SHOWN:
        choose(page, choice)
        if choice.accelerator == UNKNOWN_AT_FLOAT8 and choice.numbers == "float8":
            continue
        outside = page.evaluate(
            """() => {
            const svg = document.querySelector("#calculator-picture svg");
            const { width, height } = svg.viewBox.baseVal;
            return [...svg.querySelectorAll("circle, rect, text")]
                .filter(each => {
                    const b = each.getBBox();
                    return b.x < 0 || b.y < 0 || b.x + b.width > width || b.y + b.height > height;
                })
                .map(each => each.outerHTML); }"""
        )
        assert outside == [], choice


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_text_is_readable_and_nothing_scrolls_sideways(open_page, theme):
    page = open_page(PAGE, "phone", theme)
    for choice in (SHOWN[2], SHOWN[4]):
        choose(page, choice)
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0] + 1
    choose(page, SHOWN[0])
    for text in page.locator("#calculator-picture text").all():
        assert text.evaluate("e => e.getBoundingClientRect().height") >= 8


def test_without_scripts_the_page_shows_what_the_library_has_worked_out(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site + PAGE)
    assert page.locator("#calculator-form").is_hidden()
    expect(page.locator("noscript p")).to_contain_text("The fields need JavaScript")
    expect(page.locator("noscript p")).to_be_visible()
    rows = page.locator("div.atlas tbody tr")
    assert rows.count() == 12
    expect(rows.first).to_be_visible()
    context.close()


def test_a_worked_row_opens_as_that_choice_and_says_the_same(open_page):
    page = open_page(PAGE)
    row = page.locator("div.atlas tbody tr", has_text="gpt-oss-20b, MI300X")
    cells = row.locator("td").all_inner_texts()
    row.locator("a").click()
    page.wait_for_url("**model=gpt-oss-20b**")
    keys = ("prefill.least_s", "decode.least_s", "memory.kv_bytes_per_token")
    keys += ("memory.sequences_that_fit", "batching.crossover")
    keys += ("moving.break_even_bytes_per_s",)
    texts = {key: text for key, _, text, _ in shown(page)}
    assert [texts[key] for key in keys] == cells


def test_the_page_with_its_data_script_and_style_is_light(site, browser):
    page = browser.new_page()
    sizes = [len(page.request.get(site + PAGE).body())]
    for name in ("calculator.js", "calculator.css"):
        sizes.append(len(page.request.get(f"{site}_static/{name}").body()))
    page.close()
    assert sum(sizes) < LARGEST_BYTES


def test_the_script_needs_nothing_from_elsewhere():
    text = (ROOT / "book" / "_static" / "calculator.js").read_text(encoding="utf-8")
    addresses = re.findall(r"https?://[^\"'` ]+", text)
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(import|require|fetch|XMLHttpRequest)\b *\(", text)


def test_the_data_are_strict_json(open_page):
    text = open_page(PAGE).locator("#calculator-data").text_content()
    data = json.loads(text, parse_constant=pytest.fail)
    assert [model["name"] for model in data["models"]] == [model.name for model in shipped()]
    assert len(data["accelerators"]) == len(accelerators())
