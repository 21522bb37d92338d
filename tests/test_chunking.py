import pytest

from prefill_decode.chunking import DEAR, best_chunk, least_price, telling_chunk_lengths
from prefill_decode.hardware import Hardware
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk

HARDWARE = Hardware("any", "float64", 1e11, 1e9, "made up")
SETTING = {"streams": 2, "context_tokens": 5}


def test_the_price_of_a_length_is_its_longest_step_and_the_sum_of_all(tiny_model):
    steps = [
        [Chunk(1, 4), Chunk(1, 4), Chunk(8, 0, False)],
        [Chunk(1, 5), Chunk(1, 5), Chunk(8, 8, False)],
        [Chunk(1, 6), Chunk(1, 6), Chunk(4, 16)],
    ]
    times_s = [step_work(tiny_model, step).least_time_s(HARDWARE) for step in steps]
    price = least_price(tiny_model, HARDWARE, 20, 8, **SETTING)
    assert price.worst_gap_s == pytest.approx(max(times_s))
    assert price.ttft_s == pytest.approx(sum(times_s))


def test_lengths_reach_from_the_whole_prompt_to_one_that_is_clearly_too_small(tiny_model):
    lengths = telling_chunk_lengths(tiny_model, HARDWARE, 4096, **SETTING)
    assert lengths == sorted(lengths)
    assert lengths[-1] == 4096
    prices = [least_price(tiny_model, HARDWARE, 4096, n, **SETTING).ttft_s for n in lengths]
    assert prices[0] >= DEAR * prices[-1] > prices[1]
    assert telling_chunk_lengths(tiny_model, HARDWARE, 3, **SETTING)[0] == 1


def test_smaller_pieces_never_lengthen_the_gap_nor_shorten_the_wait(tiny_model):
    lengths = telling_chunk_lengths(tiny_model, HARDWARE, 1024, **SETTING)
    prices = [least_price(tiny_model, HARDWARE, 1024, n, **SETTING) for n in lengths]
    gaps, waits = [p.worst_gap_s for p in prices], [p.ttft_s for p in prices]
    assert waits == sorted(waits, reverse=True)
    large = gaps[1:]  # below, the streams' own caches have grown longer than the pieces shrink
    assert large == sorted(large)


def test_the_best_length_is_the_smallest_that_hardly_delays_the_prompt():
    assert best_chunk({2: 9.0, 8: 1.3, 32: 1.24, 128: 1.0, 512: 1.01}) == 32
    assert best_chunk({512: 1.0}) == 512
    with pytest.raises(ValueError, match="no chunk length"):
        best_chunk({})
