"""Sequences that fit, against counts by hand."""

import pytest

from prefill_decode.capacity import sequences_that_fit
from prefill_decode.model_spec import ModelSpec


def test_caches_share_what_the_weights_leave(tiny_model: ModelSpec) -> None:
    token_bytes = 2 * 2 * 2 * 8 * 8  # keys and values, 2 layers, 2 KV heads of 8, 8 bytes each
    memory_bytes = tiny_model.weight_bytes + 3 * 10 * token_bytes
    assert sequences_that_fit(tiny_model, memory_bytes, 10) == 3
    assert sequences_that_fit(tiny_model, memory_bytes - 1, 10) == 2
    assert sequences_that_fit(tiny_model, memory_bytes, 30) == 1
    assert sequences_that_fit(tiny_model, memory_bytes, 31) == 0


def test_no_sequence_fits_where_the_weights_do_not(tiny_model: ModelSpec) -> None:
    assert sequences_that_fit(tiny_model, tiny_model.weight_bytes / 2, 1) == 0


def test_a_sequence_without_tokens_is_refused(tiny_model: ModelSpec) -> None:
    with pytest.raises(ValueError, match="at least one token; got 0"):
        sequences_that_fit(tiny_model, 1e9, 0)
