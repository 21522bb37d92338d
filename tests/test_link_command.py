import json

import pytest

from prefill_decode.cli import main
from prefill_decode.disaggregated import link


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The same command with less to move."""
    monkeypatch.setattr(link, "LOADS", (link.Load(8), link.Load(2**17), link.Load(2**20)))
    monkeypatch.setattr(link, "PAGED", link.Load(2**20, scattered=True))


def test_it_prints_every_transport_as_strict_json(capsys):
    assert main(["link", "--budget", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    present = {each["transport"] for each in found["transports"]}
    assert {"unix", "tcp"} <= present
    assert present | set(found["missing"]) == set(link.TRANSPORTS)
    for each in found["transports"]:
        assert each["start_s"]["median"] >= 0
        assert each["loads"][-1]["scattered"]
        assert each["loads"][-1]["share_of_copy"]["median"] > 0


def test_people_get_a_table(capsys):
    assert main(["link", "--budget", "0.1"]) == 0
    shown = capsys.readouterr().out
    assert "1.05 MB / copy" in shown
    assert any(line.startswith("tcp ") for line in shown.splitlines())


@pytest.mark.parametrize("words", [["--budget", "0"], ["--budget", "nan"], ["unix"], ["--jsn"]])
def test_bad_input_is_refused_with_code_2(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["link", *words])
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_another_process_that_dies_is_a_sentence(monkeypatch, capsys):
    def dies(connection, folder, most, seed):
        connection.close()

    class Dying(link.Lender):
        def hear(self):
            self.process.kill()
            return super().hear()

    monkeypatch.setattr(link, "Lender", Dying)
    assert main(["link"]) == 2
    assert "has ended with code" in capsys.readouterr().err
