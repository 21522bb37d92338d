import json
from dataclasses import replace

import pytest

from prefill_decode.disaggregated.link import COPY, LinkRunner, Load
from prefill_decode.disaggregated.link_report import report, text
from prefill_decode.transfer_cost import LinkLaw

SMALL, NEAR, FAR, PAGED = Load(8), Load(2**20), Load(2**27), Load(2**27, scattered=True)
LOADS = (SMALL, NEAR, FAR, PAGED)
LAW = LinkLaw(2e-5, 1 / 4e9, 1 / 2e9, near_bytes=2**24)


@pytest.fixture
def times(timings):
    """Ten rounds: a transport that follows its law, half as fast in blocks; a copy at 8 GB/s."""
    seconds = {LinkRunner.name("unix", load): LAW.time_s(load.num_bytes) for load in LOADS}
    seconds[LinkRunner.name("unix", PAGED)] *= 2
    seconds |= {LinkRunner.name(COPY, load): load.num_bytes / 8e9 for load in (NEAR, FAR)}
    raw_s = {name: (value,) * 10 for name, value in seconds.items()}
    return replace(timings, raw_s=raw_s, disturbed=(True, *(False,) * 9))


@pytest.fixture
def found(times, machine):
    return report(times, ["unix"], LOADS, {"cma": "no permission"}, machine)


def test_a_transport_is_its_start_and_its_two_rates(found):
    (unix,) = found["transports"]
    assert unix["start_s"]["median"] == pytest.approx(2e-5)
    assert unix["bytes_per_s"]["median"] == pytest.approx(4e9)
    assert unix["far_bytes_per_s"]["median"] == pytest.approx(2e9, rel=0.001)
    assert unix["bytes_per_s"]["n"] == 9


def test_a_share_compares_with_the_copy_of_as_many_bytes_in_one_piece(found):
    loads = {
        (each["num_bytes"], each["scattered"]): each for each in found["transports"][0]["loads"]
    }
    assert loads[8, False]["share_of_copy"] is None
    assert loads[2**27, False]["share_of_copy"]["median"] == pytest.approx(0.25, rel=0.001)
    assert loads[2**27, True]["share_of_copy"]["median"] == pytest.approx(0.125, rel=0.001)
    assert loads[2**27, True]["bytes_per_s"]["median"] == pytest.approx(1e9, rel=0.001)


def test_the_document_is_strict_json_and_says_what_is_missing_and_disturbed(found):
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["missing"] == {"cma": "no permission"}
    assert (again["rounds"], again["disturbed_rounds"]) == (10, 1)


def test_too_few_rounds_have_no_interval_and_unknown_is_null(times, machine):
    few = replace(
        times,
        raw_s={name: values[:3] for name, values in times.raw_s.items()},
        disturbed=(False,) * 3,
    )
    found = report(few, ["unix"], LOADS, {}, machine)
    assert found["transports"][0]["start_s"]["low"] is None
    json.dumps(found, allow_nan=False)
    assert "[" not in next(line for line in text(found).splitlines() if line.startswith("unix"))


def test_people_read_a_line_for_each_transport_and_one_for_each_that_is_missing(found):
    lines = text(found).splitlines()
    unix = next(line for line in lines if line.startswith("unix"))
    assert "20.0 µs  20.0 µs  4.00 [4.00, 4.00]" in unix
    assert unix.endswith("0.250 [0.250, 0.250]  0.125 [0.125, 0.125]")
    assert "cma: missing: no permission" in lines
    assert "a plain copy of 134 MB in one thread: 8.00 [8.00, 8.00] GB/s" in lines
    assert any("other processes took the cores in 1 of 10 rounds" in line for line in lines)
