# make book   sets up, measures this machine, builds the book
# make test   sets up and runs every test
# make links  asks every external address on the pages of the last `make book`
# Each makes its own environment in .venv; PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: book test check browser links built clean

book: .venv/book
	$(BIN)/prefill-decode book $(ARGS)

# In two processes, file by file; all tests that click through the pages are one's.
test: .venv/test browser check
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site's tests click through the pages in a real Chromium: the system's, or Playwright's own.
browser: .venv/test
	$(BIN)/python tests/install_browser.py

# Sphinx's own link checker; it fails on an address that does not answer and lists them all.
links: built .venv/book
	$(BIN)/python -m sphinx -b linkcheck -q -d _build/doctrees _build/src _build/links

built:
	@test -d _build/src || { echo "make links asks the pages of the last make book; there are none: run make book" >&2; exit 2; }

.venv/python: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("the book needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	touch $@

.venv/book: .venv/python pyproject.toml
	@echo "setting up: a few silent minutes; 1.5 GB, or 8 GB where torch comes with CUDA"
	$(PIP) --editable '.[book]'
	touch $@

.venv/test: .venv/book
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf _build .venv
