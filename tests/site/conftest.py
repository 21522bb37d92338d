"""The built book, served on loopback, and a real Chromium that opens its pages.

`--site=_build` takes the book that `make book` has built in that folder; else one is built here,
with the smallest model and budget.
"""

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin

import pytest
from playwright.sync_api import sync_playwright

from tests.conftest import ROOT
from tests.install_browser import find_browser

OWN = ROOT / "_build" / "site-for-tests"
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
CHAPTER_PAGES = [f"notebooks/{name}.html" for name in CHAPTERS]
PAGES = [
    "book/index.html",
    "book/part_two_phases.html",
    "book/part_contention.html",
    "book/part_disaggregation.html",
    "book/part_engines.html",
    "book/what_follows.html",
    "book/how_to_read.html",
    "book/glossary.html",
    "book/run_it.html",
    "book/calculator.html",
    "book/crossover_atlas.html",
    "book/results_by_machine.html",
    "book/results_by_machine/decode_is_bandwidth_bound.html",
    "book/results_by_machine/kv_transfer_cost.html",
    "book/history.html",
    "book/history/decode_is_bandwidth_bound.html",
    "book/how_far_to_trust.html",
    "book/status.html",
    "book/architecture.html",
    "book/api.html",
    "book/api/engine.html",
    "book/api/logic.html",
    "book/api/logic_2.html",
    "book/api/endpoint.html",
    "book/api/disaggregated.html",
    "book/api/disaggregated_2.html",
    "book/references.html",
    *CHAPTER_PAGES,
]
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
SHEET = (672, 1000)  # an A4 page less its margins, at the 96 pixels an inch that CSS counts
SETTLED = """async () => {
  await window.MathJax?.startup?.promise;
  await document.fonts.ready;
}"""


@pytest.hookimpl(trylast=True)  # after pytest's own grouping
def pytest_collection_modifyitems(items):
    """Tests that only look are sorted by page, so that each page is loaded once for all of them."""
    here = [place for place, item in enumerate(items) if "look" in item.fixturenames]
    looking = sorted((items[place] for place in here), key=page_number)
    for place, item in zip(here, looking, strict=True):
        items[place] = item


def page_number(item):
    path = item.callspec.params["path"]
    return PAGES.index(path) if path in PAGES else len(PAGES)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture(scope="session")
def built(pytestconfig):
    """The folder of the built book, and that of the records that it shows."""
    given = pytestconfig.getoption("--site")
    if given is not None:
        build = (ROOT / given).resolve()
        assert (build / "html" / "index.html").is_file(), f"no book was built in {build}"
        return build, ROOT / "book" / "results"
    build, results = OWN / "build", OWN / "results"
    words = [*(sys.executable, "-m", "prefill_decode.cli", "book", "--device", "cpu")]
    words += ["--budget", "1", "-p", "model_name=smollm2-135m"]
    words += ["--build", str(build), "--results", str(results)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-2000:]  # every test says it again
    assert f"open {build / 'html' / 'index.html'}" in done.stdout
    assert "verdicts on" in done.stdout
    assert "surprising on" in done.stdout
    return build, results


@pytest.fixture(scope="session")
def site(built):
    """The address of the built site, served on loopback."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(QuietHandler, directory=str(built[0] / "html"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="package")  # Playwright's event loop runs in this thread until it is left
def browser():
    path = find_browser()
    if path is None:
        pytest.fail("the site's tests need Chromium: run `make test`, which installs it")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


class Tab:
    """A page in a browser's context of its own, which notes requests and console messages."""

    def __init__(self, browser, address, size="wide", theme="light"):
        width, height = (SIZES | {"sheet": SHEET})[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        self.page = page = self.context.new_page()
        page.requested, page.complaints = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", self._note)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        assert page.goto(address, wait_until="load").ok
        page.evaluate(SETTLED)
        self._noted = len(page.requested), len(page.complaints)

    def _note(self, message):
        if message.type in ("error", "warning"):
            self.page.complaints.append(message.text)

    def turn(self, size, theme, media):
        """As if loaded so. What was noted since it was loaded is forgotten: axe, for one, asks for
        style sheets where there are none."""
        width, height = (SIZES | {"sheet": SHEET})[size]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(media=media, color_scheme=theme, reduced_motion="reduce")
        self.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        del self.page.requested[self._noted[0] :], self.page.complaints[self._noted[1] :]


@pytest.fixture
def open_page(browser, site):
    """open_page(path, size, theme) -> a page loaded for this test alone, to click on."""
    tabs = []

    def open_it(path, size="wide", theme="light"):
        tabs.append(Tab(browser, urljoin(site, path), size, theme))
        return tabs[-1].page

    yield open_it
    for tab in tabs:
        tab.context.close()


@pytest.fixture(scope="package")
def opened():
    """The page that was looked at last: {path: its tab}."""
    tabs = {}
    yield tabs
    for tab in tabs.values():
        tab.context.close()


@pytest.fixture
def look(browser, site, opened):
    """look(path, size, theme, media) -> a page that others look at too: not to be changed."""

    def look_at(path, size="wide", theme="light", media="screen"):
        if path not in opened:
            for tab in opened.values():
                tab.context.close()
            opened.clear()
            opened[path] = Tab(browser, urljoin(site, path))
        opened[path].turn(size, theme, media)
        return opened[path].page

    return look_at
