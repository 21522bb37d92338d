"""Page head: a Sphinx extension that tells search engines and previews what a page says.

Description, Open Graph and canonical address; the version in the footer; roles that screen readers
know; links to the sources. Sphinx writes the canonical address itself once html_baseurl is set.
`stage.build_html` sets what this reads.
"""

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from prefill_decode.book.slim_svg import slim
from prefill_decode.book.social_card import CARD_NAME, HEIGHT_PIXELS, WIDTH_PIXELS
from prefill_decode.book.source_links import lead_to_sources

BEHIND_THE_THEME = 600  # its buttons come at 501
LONGEST_DESCRIPTION = 200  # characters; search engines show fewer
UNTITLED = {"search": "Search", "genindex": "Index"}  # pages whose title only their template knows
HEAD_TAG = re.compile(r'<meta (?:name="(?:description|twitter:card)"|property="og:)[^>]*>')


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("social_card_finding", "", "html")
    app.connect("config-inited", _say_version)
    app.connect("html-page-context", _add_head)
    app.connect("html-page-context", _mend_body)
    app.connect("html-page-context", lead_to_sources, priority=BEHIND_THE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def describe(paragraph: str) -> str:
    """The first sentences of a paragraph, as many as fit; of a longer one, its first words."""
    text = " ".join(paragraph.split()).removeprefix("Claim. ")
    shown = ""
    for sentence in re.findall(r".+?[.?!:](?=\s|$)|.+$", text):
        if len(shown) + len(sentence) > LONGEST_DESCRIPTION:
            break
        shown += sentence
    return shown or text[:LONGEST_DESCRIPTION].rpartition(" ")[0] + " …"


def first_paragraph(doctree: nodes.document | None) -> str:
    """The first paragraph that stands in a section itself, not in a box; empty without one."""
    if doctree is None:
        return ""
    paragraphs = doctree.findall(nodes.paragraph)
    texts = (each.astext() for each in paragraphs if isinstance(each.parent, nodes.section))
    return next(texts, "")


def head_tags(
    site: str, title: str, description: str, address: str | None, card: tuple[str, str] | None
) -> str:
    """The tags of one page; `card` is a picture's address and what it says."""
    tags = [_meta("name", "description", description)]
    found = {"og:site_name": site, "og:title": title, "og:description": description}
    found["og:type"] = "website" if title == site else "article"
    if address:
        found["og:url"] = address
    if card:
        found["og:image"], found["og:image:alt"] = card
        found["og:image:width"] = str(WIDTH_PIXELS)
        found["og:image:height"] = str(HEIGHT_PIXELS)
        tags.append(_meta("name", "twitter:card", "summary_large_image"))
    return "\n    ".join([*tags, *(_meta("property", *pair) for pair in found.items())])


def _meta(kind: str, name: str, content: str) -> str:
    return f'<meta {kind}="{name}" content="{escape(content, quote=True)}" />'


def _say_version(app: Sphinx, config: Config) -> None:
    """The footer says which code built the page; the theme adds the date."""
    if config.release:
        config.html_theme_options["extra_footer"] = f"<p>Version {escape(config.release)}.</p>"


def _add_head(
    app: Sphinx,
    pagename: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    site = str(app.config.html_title)
    title = context.get("title") or UNTITLED.get(pagename, site)
    title = re.sub(r"<[^>]*>", "", title)
    text = first_paragraph(doctree)
    finding, base = str(app.config.social_card_finding), app.config.html_baseurl
    card = (f"{base}_static/{CARD_NAME}", finding) if base and finding else None
    description = describe(text) if text else f"{title}: {site}"
    tags = head_tags(site, title, description, context.get("pageurl"), card)
    if doctree is None:  # a page made by Sphinx, such as the search
        tags += '\n    <meta name="robots" content="noindex" />'
    context["metatags"] = f"{context.get('metatags', '')}\n    {tags}"


def _mend_body(
    app: Sphinx,
    pagename: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    context["body"] = slim(with_known_roles(context.get("body") or ""))


def with_known_roles(body: str) -> str:
    """Entries of a bibliography as items of its list: docutils gives them a role of their own,
    which WAI-ARIA has deprecated and a list may not hold. The lines of a long signature as mere
    lines: Sphinx lays them out as definitions without a term."""
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    return re.sub(r'<dl>(?=\s*<dd><em class="sig-param">)', '<dl role="presentation">', body)
