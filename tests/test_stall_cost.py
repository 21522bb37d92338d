"""Three ways to serve a burst, priced by hand on round numbers."""

from dataclasses import replace

import pytest

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.stall_cost import (
    APART,
    CHUNKED,
    ONE_PIECE,
    Burst,
    Foreseen,
    Latency,
    apart,
    chunked,
    foresee,
    one_piece,
    telling_burst,
)

# No attention to speak of: 1e6 weights of a layer dwarf what a few tokens leave in the cache.
MODEL = ModelSpec(
    name="square",
    num_layers=1,
    hidden_size=512,
    intermediate_size=4096,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=2,
    tied_embeddings=False,
    dtype="float32",
)
WHOLE = Hardware("all", "float32", 100e9, 10e9, "made up")  # a ridge of 10, at 20 tokens
SHARE = Hardware("half", "float32", 50e9, 8e9, "made up")
BURST = Burst(prompt_tokens=400, chunk_tokens=100, streams=4, context_tokens=2)


def read_s(hardware: Hardware) -> float:
    """Of all weights once."""
    return MODEL.weight_bytes_read / hardware.bandwidth_bytes_per_s


def products_s(tokens: int, hardware: Hardware) -> float:
    return 2 * MODEL.layer_params * tokens / hardware.peak_flops_per_s


def test_one_piece_stalls_the_streams_for_the_prefill_and_a_step():
    found = one_piece(MODEL, BURST, WHOLE)
    assert found.quiet_gap_s == pytest.approx(read_s(WHOLE), 0.01)
    assert found.ttft_s == pytest.approx(products_s(400, WHOLE), 0.02)
    assert found.worst_gap_s == pytest.approx(products_s(400, WHOLE) + read_s(WHOLE), 0.02)
    assert found.joining_s == pytest.approx(read_s(WHOLE), 0.02)


def test_pieces_stall_them_for_a_piece_and_take_as_long_past_the_ridge():
    found = chunked(MODEL, BURST, WHOLE)
    assert found.worst_gap_s == pytest.approx(products_s(104, WHOLE), 0.02)
    assert found.ttft_s == pytest.approx(products_s(416, WHOLE), 0.02)


def test_a_decode_worker_knows_nothing_of_the_prompt_and_a_newcomer_waits_for_its_step():
    found = apart(MODEL, BURST, prefill=SHARE, decode=WHOLE)
    assert found.worst_gap_s == pytest.approx(read_s(WHOLE), 0.02)
    assert found.joining_s == found.stall_s == pytest.approx(2 * read_s(WHOLE), 0.02)
    assert found.ttft_s == pytest.approx(products_s(400, SHARE), 0.02)


def test_half_of_the_matrix_rate_makes_the_prompt_wait_twice_as_long():
    found = foresee(MODEL, BURST, WHOLE, SHARE)
    assert found.wait_ratio == pytest.approx(2.0, 0.01)
    assert found.quiet_ratio(ONE_PIECE) == pytest.approx(0.8, 0.01)  # 8 of 10 GB/s
    assert found.gap_ratio(APART) == 1.0
    expected = (products_s(400, WHOLE) + read_s(WHOLE)) / read_s(SHARE)
    assert found.gap_ratio(ONE_PIECE) == pytest.approx(expected, 0.02)


LATENCIES = {
    ONE_PIECE: Latency(quiet_gap_s=0.01, worst_gap_s=0.25, ttft_s=0.20, joining_s=0.01),
    CHUNKED: Latency(quiet_gap_s=0.01, worst_gap_s=0.09, ttft_s=0.25, joining_s=0.01),
    APART: Latency(quiet_gap_s=0.02, worst_gap_s=0.02, ttft_s=0.45, joining_s=0.04),
}


def test_each_group_is_strict_halfway_between_two_ways_and_patient_otherwise():
    found = Foreseen(BURST, LATENCIES)
    assert found.readers.stall_s == pytest.approx(0.06)  # of 0.04 and 0.09
    assert found.readers.ttft_s == pytest.approx(0.90)
    assert found.askers.ttft_s == pytest.approx(0.30)  # of 0.20 and 0.45
    assert found.askers.stall_s == pytest.approx(0.50)


def test_goodput_rises_for_readers_and_falls_for_askers():
    found = Foreseen(BURST, LATENCIES)
    shares = {
        way: (found.share_good(way, found.readers), found.share_good(way, found.askers))
        for way in LATENCIES
    }
    assert shares == {ONE_PIECE: (0.2, 1.0), CHUNKED: (0.2, 1.0), APART: (1.0, 0.8)}


def test_where_workers_gain_nothing_on_pieces_readers_are_strict_with_what_is_longer():
    slow = replace(LATENCIES[APART], joining_s=0.16)
    found = Foreseen(BURST, {**LATENCIES, APART: slow})
    assert found.readers.stall_s == pytest.approx(0.20)  # of 0.16 and 0.25
    assert found.share_good(CHUNKED, found.readers) == 1.0


def test_a_telling_burst_has_several_pieces_past_the_ridge():
    found = telling_burst(MODEL, WHOLE, streams=3)
    assert found.chunk_tokens >= 4 * 20
    assert found.prompt_tokens == 4 * found.chunk_tokens
    assert found.streams == 3
    assert telling_burst(MODEL, WHOLE, prompt_tokens=7).chunk_tokens == 7


@pytest.mark.parametrize(
    "wrong",
    [{"streams": 0}, {"chunk_tokens": 0}, {"chunk_tokens": 401}, {"context_tokens": 0},
     {"answer_tokens": 1}],
)  # fmt: skip
def test_a_burst_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="a burst has a stream"):
        replace(BURST, **wrong)
