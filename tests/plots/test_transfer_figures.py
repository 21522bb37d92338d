from dataclasses import replace

import pytest

from prefill_decode import plots
from prefill_decode.statistics import median_interval
from prefill_decode.transfer_cost import Handover, LinkLaw, fit_laws

SIZES, HELD = (8, 2**18, 2**20, 2**24), 2**22
LAWS = {"unix": LinkLaw(2e-5, 1 / 3e9, 1 / 3e9), "tcp": LinkLaw(3e-5, 1 / 2e9, 1 / 2e9)}
HANDOVER = Handover(prefill_s=0.2, moved_bytes=4_000_000, num_layers=8)  # 20 MB/s break even
SPEEDS = (5e6, 20e6, 80e6)


def steady(timings, seconds):
    """Ten rounds in which nothing varies."""
    return replace(timings, raw_s={name: (value,) * 10 for name, value in seconds.items()})


@pytest.fixture
def transfers(timings):
    """Two transports that follow their laws, but for one size of one."""
    names = {t: {n: f"{t}, {n} B" for n in (*SIZES, HELD)} for t in LAWS}
    seconds = {names[t][n]: LAWS[t].time_s(n) for t in LAWS for n in names[t]}
    seconds[names["tcp"][HELD]] *= 1.25
    times = steady(timings, seconds | {"prefill": 0.2})
    fits = {t: fit_laws(SIZES, [times.times_s(names[t][n]) for n in SIZES]) for t in LAWS}
    return times, names, fits


@pytest.fixture
def links(timings):
    """Moves and layered handovers as their formulas have them, over three links."""
    moves = {speed: f"move at {speed:g}" for speed in SPEEDS}
    layered = {speed: f"layers at {speed:g}" for speed in SPEEDS[:2]}
    seconds = {moves[speed]: HANDOVER.transfer_s(speed) for speed in SPEEDS}
    seconds |= {layered[speed]: HANDOVER.exposed_s(speed) for speed in layered}
    return steady(timings, seconds | {"prefill": 0.2}), moves, layered


def test_the_title_says_how_far_the_worst_law_missed(transfers):
    figure = plots.time_against_bytes(*transfers, HELD)
    assert "Two numbers foresee a transfer within 25%, of 4.19 MB, a size" in figure.alt
    assert "unix: 8.00 B: 20.0 µs, 262 kB: 107 µs" in figure.alt
    assert "tcp" in figure.svg


def test_a_law_stands_beside_its_miss_and_its_share_of_the_prefill(transfers):
    text = plots.laws_table(*transfers, HELD, "prefill").markdown
    unix, tcp = (next(x for x in text.splitlines() if x.startswith(f"| {t}")) for t in LAWS)
    assert "20.0 [20.0, 20.0] µs | 3.00 [3.00, 3.00] GB/s | 1.42 [1.42, 1.42] ms" in unix
    assert unix.endswith("1.00 [1.00, 1.00] | 0.00709 [0.00709, 0.00709] |")
    assert "| 1.25 [1.25, 1.25] |" in tcp


def test_the_break_even_link_is_where_the_moves_cross_the_prefill(links):
    times, moves, _ = links
    figure = plots.move_or_compute(times, moves, "prefill", HANDOVER.moved_bytes, [20e6] * 10)
    assert "Moving beats computing beyond 160 Mb/s" in figure.alt
    assert "40.0 Mb/s: 800 ms, 160 Mb/s: 200 ms, 640 Mb/s: 50.0 ms" in figure.alt
    assert "<svg" in figure.svg


def test_at_the_break_even_link_seven_of_eight_layers_hide(links):
    times, moves, layered = links
    figure = plots.hidden_by_the_prefill(times, moves, layered, HANDOVER)
    assert "Layer by layer, 88% of the transfer hides over a link of 160 Mb/s" in figure.alt
    assert "160 Mb/s: 25.0 ms instead of 200 ms" in figure.alt


def test_what_the_laws_say_is_told_before_anything_moves():
    text = plots.handover_table(HANDOVER).markdown
    assert "| 160 Mb/s | 200 ms | 400 ms | 225 ms | 25.0 ms |" in text
    assert "leaves 4.00 MB in 8 layers: a link of 160 Mb/s breaks even" in text


def test_what_comes_from_data_sheets_is_called_modelled():
    text = plots.modelled_table({("a-7b", "H100"): HANDOVER}, [20e6, 2e9]).markdown
    assert text.startswith("| modelled |")
    assert "| a-7b on H100 | 4.00 MB | 200 ms | 160 Mb/s | 1.0 | 0.010 |" in text


def test_a_law_of_a_rate_that_varies_has_an_interval(transfers):
    times, names, fits = transfers
    laws = [
        replace(law, per_byte_s=law.per_byte_s * (1 + i / 100))
        for i, law in enumerate(fits["unix"].laws)
    ]
    varied = replace(fits["unix"], laws=tuple(laws))
    expected = median_interval([1 / law.per_byte_s for law in laws])
    assert varied.bytes_per_s.low == pytest.approx(expected.low)
    text = plots.laws_table(times, names, {"unix": varied}, HELD, "prefill").markdown
    assert f"[{expected.low / 1e9:.2f}, " in text
