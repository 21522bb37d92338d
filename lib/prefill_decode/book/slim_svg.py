"""Slim SVG: the same pictures in fewer bytes, for pages that hold many.

Coordinates are rounded to a hundredth of a point, which no screen shows; lines are joined; grounds
that are not painted go, and so do names of groups, unless something refers to them; what several
paths look like is said once. Words keep their own style, which the pages' own may look for."""

import re
from collections import Counter
from hashlib import sha256

SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
UNPAINTED = re.compile(r'<path d="[^"]*" style="fill: none"/>')  # neither filled nor stroked
EMPTY_GROUP = re.compile(r'<g(?: id="[^"]*")?>\s*</g>')
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
UNTURNED = re.compile(r' transform="rotate\(-?0 [^"]*"')
STYLED = re.compile(r'(<(?:path|use)\b[^>]*?) style="([^"]*)"')
PLACES = re.compile(r'\b(d|x|y|transform|points)="([^"]*)"')


def slim(page: str) -> str:
    """The page with every inline SVG in it slimmed."""
    return SVG.sub(lambda found: slim_svg(found[0]), page)


def slim_svg(svg: str) -> str:
    svg = UNTURNED.sub("", UNPAINTED.sub("", svg)).replace("font-family: inherit; ", "")
    while (fewer := EMPTY_GROUP.sub("", svg)) != svg:
        svg = fewer
    svg = PLACES.sub(lambda found: f'{found[1]}="{_rounded(found[2])}"', svg)
    named = set(re.findall(r"(?:#|aria-labelledby=\")([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in named else "", svg)
    return re.sub(r"\s*\n\s*", "", _with_classes(svg))


def _with_classes(svg: str) -> str:
    """Styles that paths share as classes; names follow from the style, so equal ones may meet."""
    counts = Counter(style for _, style in STYLED.findall(svg))
    names = {
        style: "s" + sha256(style.encode()).hexdigest()[:6] for style, n in counts.items() if n > 1
    }

    def named(found: re.Match[str]) -> str:
        name = names.get(found[2])
        return f'{found[1]} class="{name}"' if name else found[0]

    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    if not rules:
        return svg
    opening, rest = STYLED.sub(named, svg).split(">", 1)
    return f"{opening}><style>{rules}</style>{rest}"


def _rounded(places: str) -> str:
    """A path or a place with short numbers, on one line."""
    short = LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), places)
    return " ".join(short.split())
