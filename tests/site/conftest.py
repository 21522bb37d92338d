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
    "book/history.html",
    "book/how_far_to_trust.html",
    "book/status.html",
    "book/architecture.html",
    "book/api.html",
    "book/api/engine.html",
    "book/api/logic.html",
    "book/api/endpoint.html",
    "book/api/disaggregated.html",
    "book/references.html",
    *(f"notebooks/{name}.html" for name in CHAPTERS),
]
SIZES = {"wide": (1280, 900), "phone": (390, 844)}


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
    assert done.returncode == 0, done.stderr
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


@pytest.fixture(scope="session")
def browser():
    path = find_browser()
    if path is None:
        pytest.fail("the site's tests need Chromium: run `make test`, which installs it")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


@pytest.fixture
def open_page(browser, site):
    """open_page(path, size, theme) -> a loaded page that notes requests and console messages."""
    contexts = []

    def open_it(path, size="wide", theme="light"):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.requested, page.complaints = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on(
            "console",
            lambda message: (
                page.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        response = page.goto(urljoin(site, path), wait_until="load")
        assert response.ok
        page.wait_for_load_state("networkidle")
        return page

    yield open_it
    for context in contexts:
        context.close()
