"""Launching a published notebook: what cannot be is refused before anything is downloaded."""

import subprocess
import sys

import pytest

from tests import launch_published
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no_such_chapter"], "a chapter is one of"),
        (["../book/index"], "a chapter is one of"),
        (["decode_is_serial", "--budget", "-1"], "must be a positive number of seconds"),
        (["decode_is_serial", "--budget", "nan"], "must be a positive number of seconds"),
        (["decode_is_serial", "--budget", "soon"], "invalid positive_seconds value"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_at_once(monkeypatch, capsys, words, told):
    monkeypatch.setattr(launch_published, "launch", lambda *words: pytest.fail("it was launched"))
    monkeypatch.setattr(sys, "argv", ["launch_published.py", *words])
    with pytest.raises(SystemExit) as end:
        launch_published.main()
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_an_environment_that_cannot_be_made_is_one_sentence(monkeypatch, capsys):
    def offline(*words):
        raise subprocess.CalledProcessError(1, ["python", "-m", "pip", "install"])

    monkeypatch.setattr(launch_published, "launch", offline)
    monkeypatch.setattr(sys, "argv", ["launch_published.py", "decode_is_serial"])
    assert launch_published.main() == 2
    assert capsys.readouterr().err == (
        "no environment to launch in: python -m pip install failed\n"
    )


def test_links_of_a_book_that_was_not_built_are_not_asked(tmp_path):
    words = ["make", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "links"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there are none: run make book" in done.stderr
    assert not list(tmp_path.iterdir())
