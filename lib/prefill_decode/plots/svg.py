"""SVG: a matplotlib figure as inline SVG whose ink is the page's own text colour."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from io import StringIO
from typing import Any

INK = "#012345"  # drawn with this, shown in the page's text colour
# Blue and vermilion after Okabe and Ito, light enough for dark pages, dark enough for white ones.
BLUE, ORANGE = "#2b83c6", "#d55e00"
WIDTH_INCHES, HEIGHT_INCHES = 5.2, 3.7

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.transparent": True,
}


@dataclass(frozen=True)
class Figure:
    """Inline SVG and the sentence that stands in for it where it cannot be seen."""

    svg: str
    alt: str

    def _repr_html_(self) -> str:
        return f'<div class="figure">{self.svg}</div>'

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def standalone(self) -> str:
        """The same as a file of its own, with ink for light and for dark surroundings."""
        style = (
            "<style>svg{color:#1f2328;font-family:system-ui,sans-serif}"
            "@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"
        )
        return re.sub(r"(<svg[^>]*>)", lambda found: found.group(1) + style, self.svg, count=1)


@contextmanager
def canvas() -> Iterator[Any]:
    """A matplotlib figure in the book's style, closed again at the end."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield Canvas(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")


def as_figure(drawn: Any, alt: str) -> Figure:
    import matplotlib

    text = StringIO()
    salt = sha256(alt.encode()).hexdigest()[:8]
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(_inline(text.getvalue(), alt, salt), alt)


def _inline(document: str, alt: str, salt: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r'\bid="', f'id="f{salt}-', svg)  # ids must be unique on a page of many figures
    svg = re.sub(r"url\(#", f"url(#f{salt}-", svg)
    svg = re.sub(r'xlink:href="#', f'href="#f{salt}-', svg)
    opening = f'<svg role="img" aria-label="{escape(alt, quote=True)}"'
    svg = re.sub(r'<svg xmlns:xlink="[^"]*"', opening, svg, count=1)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    return re.sub(r"\n\s*", "\n", svg).strip()
