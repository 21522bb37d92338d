"""Phase figures: accelerators ranked by what a watt does in each phase, and fleets under a limit of
power. Ranks and laws come from data sheets; only a table that says so is simulated."""

from collections.abc import Sequence
from typing import Any

from prefill_decode.fleet_claims.phases import Choice, Found, Setting
from prefill_decode.plots.svg import BLUE, INK, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, table
from prefill_decode.statistics import median_interval
from prefill_decode.units import format_si, format_significant

KILOWATT = 1e3


def candidates_table(setting: Setting) -> Text:
    """The parts that a fleet may be made of, and where their figures come from."""
    rows = [
        (
            name,
            *(format_significant(each * KILOWATT) for each in setting.per_watt(name)),
            format_si(row.at("bfloat16").peak_flops_per_s, "FLOP/s"),
            format_si(row.bandwidth_bytes_per_s, "B/s"),
            format_si(_power_w(setting, name), "W"),
            row.source,
        )
        for name, row in setting.rows.items()
    ]
    header = (
        "accelerator",
        "prompts/s of a kW, by the roofline",
        "answers/s of a kW",
        "dense peak",
        "bandwidth",
        "power, at most",
        "source",
    )
    return Text(table(header, rows))


def fleets_table(setting: Setting) -> Text:
    """The best fleets under the limit of power by the law, of the candidates and of all cited."""
    mixed, uniform = setting.of_all
    rows = [_fleet_row("best mixed pair", setting.mixed)]
    rows += [_fleet_row(f"uniform, {each.prefill}", each) for each in setting.uniform]
    rows += [_fleet_row("best uniform, workers whole", setting.whole[0])]
    rows += [_fleet_row("best mixed pair of all cited", mixed)]
    rows += [_fleet_row("best uniform fleet of all cited", uniform)]
    many = [setting.gain_of_many(list(names)) for names in (setting.rows, setting.all_rows)]
    told = (
        f"By the roofline the mixed pair gains {setting.gain:.0%} over the best uniform fleet of "
        f"the candidates, split or whole. Over the best that is split it gains "
        f"{setting.mixed.rate_per_s / setting.uniform[0].rate_per_s - 1:.0%}, and of all that is "
        f"cited {mixed.rate_per_s / uniform.rate_per_s - 1:.0%}; with so much power that whole "
        f"workers are no limit, it would be {many[0]:.0%} and {many[1]:.0%}."
    )
    header = ("fleet", "prefill + decode workers", "power", "requests/s, by the roofline")
    return Text(table(header, rows) + f"\n\n{told}\n")


def loads_table(settings: Sequence[Setting]) -> Text:
    """What the mixed pair gains under other loads, by the law."""
    rows = [
        (
            f"{each.load[0]} + {each.load[1]}",
            str(each.mixed),
            str(max(each.rivals, key=lambda rival: rival.rate_per_s)),
            f"{each.gain:.0%}",
        )
        for each in settings
    ]
    header = ("prompt + answer, tokens", "best mixed pair", "best uniform fleet", "gain")
    return Text(table(header, rows))


def power_table(found: Found) -> Text:
    """The simulated fleets beside the law."""
    setting = found.setting
    fleets = [(setting.mixed, found.mixed_per_s)]
    fleets += zip(setting.rivals, found.rivals_per_s, strict=True)
    rows = []
    for choice, rates in fleets:
        rate = median_interval(rates)
        of_a_kw = format_significant(rate.median * KILOWATT / choice.power_w)
        law = format_significant(choice.rate_per_s)
        power = format_si(choice.power_w, "W")
        rows.append((str(choice), power, law, format_interval(rate), of_a_kw))
    gain = median_interval(found.gains)
    told = (
        f"The mixed pair gains {gain.median:.0%} [{gain.low:.0%}, {gain.high:.0%}] over the better "
        f"of the uniform fleets, simulated with {found.num_seeds} seeds."
    )
    header = ("fleet", "power", "by the roofline", "requests/s, simulated, 95%", "of a kW")
    return Text(table(header, rows) + f"\n\n{told}\n")


def ranks_by_phase(setting: Setting) -> Figure:
    """Every cited accelerator's rank by prompts and by answers for each watt, as a slope."""
    left, right = setting.ranks(0), setting.ranks(1)
    pair = (setting.mixed.prefill, setting.mixed.decode)
    title = "Two phases, two rankings of accelerators"
    with canvas() as figure:
        figure.set_figheight(4.6)
        axes = figure.subplots()
        for name in left:
            color, weight = (BLUE, "bold") if name in pair else (INK, "normal")
            alpha = 1.0 if name in setting.rows else 0.45
            ends = (left.index(name) + 1, right.index(name) + 1)
            axes.plot((0, 1), ends, color=color, alpha=alpha, marker="o", markersize=4)
            for x, place, side in ((0, ends[0], "right"), (1, ends[1], "left")):
                shift = (-8 if side == "right" else 8, 0)
                axes.annotate(name, (x, place), shift, textcoords="offset points", ha=side,
                              va="center", fontsize=8.5, color=color, alpha=max(alpha, 0.75),
                              fontweight=weight)  # fmt: skip
        _bare(axes, len(left))
        axes.set_title(title)
        return as_figure(
            figure,
            f"{title}, for each watt of the power in print. By prompts, best first: "
            f"{', '.join(left)}. By answers: {', '.join(right)}.",
        )


def _bare(axes: Any, count: int) -> None:
    axes.set_xlim(-0.95, 1.95)
    axes.set_ylim(count + 0.7, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for x, words in ((0, "prefill per watt"), (1, "decode per watt")):
        axes.annotate(words, (x, 0.1), ha="center", va="bottom", fontsize=9.5)


def _fleet_row(name: str, choice: Choice) -> tuple[str, ...]:
    power, rate = format_si(choice.power_w, "W"), format_significant(choice.rate_per_s)
    return (name, str(choice), power, rate)


def _power_w(setting: Setting, name: str) -> float:
    power_w = setting.rows[name].power_w
    assert power_w is not None
    return float(power_w)
