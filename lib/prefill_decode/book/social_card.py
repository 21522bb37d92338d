"""Social card: the picture that a preview of a link shows, with the finding that was measured.

The newest record of the chapter on prefill gives the points: its decode and its longest prefill on
the roofline of its machine. Drawn as PNG, as previews take no SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from prefill_decode.book.pages import ROOFLINE_CLAIM
from prefill_decode.results import Record
from prefill_decode.units import GFLOP, format_significant

CARD_NAME = "social-card.png"
WIDTH_PIXELS, HEIGHT_PIXELS = 1200, 630  # what previews are cut to
DOTS_PER_INCH = 100
GROUND, INK, BLUE, ORANGE = "#ffffff", "#1f2328", "#1f6fab", "#b84f00"


@dataclass(frozen=True)
class Finding:
    """Two steps on a measured roofline. Rates in FLOP/s, intensities in FLOP/byte."""

    machine: str
    intensities: tuple[float, float]  # of the decode, of the prefill
    rates_flops_per_s: tuple[float, float]
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    @property
    def sentence(self) -> str:
        decode, prefill = self.rates_flops_per_s
        times = format_significant(prefill / decode, 2)
        return f"Prefill does {times} times the FLOP/s of decode, measured on {self.machine}."


def newest_finding(records: Sequence[Record]) -> Finding | None:
    """What the newest usable record says, a void one last; None if there is none."""
    usable = [r for r in records if r["claim"] == ROOFLINE_CLAIM and _steps(r) is not None]
    if not usable:
        return None
    record = max(usable, key=lambda r: (r["verdict"]["outcome"] != "void", str(r["date"])))
    steps = _steps(record)
    assert steps is not None
    decode, prefill = steps
    during = record["ceilings"]["during"]
    return Finding(
        record["machine"]["title"],
        (decode["flops"] / decode["bytes"], prefill["flops"] / prefill["bytes"]),
        (_rate(decode), _rate(prefill)),
        during["peak_flops_per_s"],
        during["bandwidth_bytes_per_s"],
    )


def _steps(record: Record) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Its decode of one sequence and its longest prefill."""
    decodes = [p for p in record["points"] if p["step"].startswith("decode")]
    prefills = [p for p in record["points"] if p["new_tokens"] > 1 and p["sequences"] == 1]
    if not decodes or not prefills:
        return None
    return decodes[0], max(prefills, key=lambda p: int(p["new_tokens"]))


def _rate(point: dict[str, Any]) -> float:
    return float(point["flops"] / point["time_s"]["median"])


def draw(finding: Finding, title: str, path: Path) -> None:
    """Write the card to `path`."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 17, "text.color": INK})
        size = (WIDTH_PIXELS / DOTS_PER_INCH, HEIGHT_PIXELS / DOTS_PER_INCH)
        canvas = Canvas(figsize=size, facecolor=GROUND, dpi=DOTS_PER_INCH)
        canvas.text(0.05, 0.86, title, fontsize=36, fontweight="bold", va="center")
        says = fill(finding.sentence, 24)
        canvas.text(0.05, 0.46, says, fontsize=24, va="center", linespacing=1.35)
        canvas.text(0.05, 0.1, "A book that measures itself", fontsize=17, va="center", alpha=0.75)
        _roofline(canvas.add_axes((0.55, 0.16, 0.41, 0.6)), finding)
        canvas.savefig(path, format="png", metadata={"Software": None})


def _roofline(axes: Any, finding: Finding) -> None:
    decode, prefill = finding.intensities
    rates = [rate / GFLOP for rate in finding.rates_flops_per_s]
    peak = finding.peak_flops_per_s / GFLOP
    slope = finding.bandwidth_bytes_per_s / GFLOP
    bends = sorted({decode / 2, finding.peak_flops_per_s / finding.bandwidth_bytes_per_s})
    roof = [*bends, max(prefill * 2, bends[-1])]
    axes.loglog(roof, [min(x * slope, peak) for x in roof], color=BLUE, linewidth=3)
    axes.plot(finding.intensities, rates, "o", color=ORANGE, markersize=15, zorder=3)
    axes.set_ylim(min(rates) / 4, peak * 1.8)
    for word, x, y, align in (("decode", decode, rates[0], "left"),
                              ("prefill", prefill, rates[1], "right")):  # fmt: skip
        axes.annotate(word, (x, y), (0, -18), textcoords="offset points", ha=align, va="top",
                      fontweight="bold", fontsize=20)  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("FLOP for each byte moved")
    axes.set_ylabel("GFLOP/s")
    axes.minorticks_off()
