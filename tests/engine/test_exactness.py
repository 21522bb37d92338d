"""The exactness samples: rounding in a sound engine, and every broken rule of the cache noticed."""

import pytest
import torch

from prefill_decode.claim import Prediction
from prefill_decode.engine import (
    Engine,
    arrival_differences,
    batching_differences,
    chunking_differences,
    engine,
    exactness,
    linear,
    model,
    scoring_differences,
)
from prefill_decode.statistics import median_interval


@pytest.fixture
def torch_alone(monkeypatch):
    """So that what a test breaks is what runs."""
    monkeypatch.setattr(linear, "kernels", lambda: None)


ALL = [chunking_differences, scoring_differences, batching_differences, arrival_differences]
ON_A_CACHE = [chunking_differences, scoring_differences]


def outcome(samples):
    control = Prediction("logits", 1e-12, rival=1.0)
    return control.judge(median_interval(samples)).outcome


@pytest.mark.parametrize("differences", ALL)
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_kv_heads": 1}, {"qkv_bias": True, "qk_norm": True}, {"windows": (4096, None)}],
)
def test_a_sound_engine_differs_by_rounding_only(tiny_model, differences, changes):
    samples = differences(type(tiny_model)(**{**tiny_model.__dict__, **changes}), seed=3)
    assert len(samples) >= 8
    assert all(0 <= sample < 1e-12 for sample in samples)
    assert outcome(samples) == "supported"


@pytest.mark.parametrize("differences", ALL)
def test_the_dice_follow_the_seed(tiny_model, differences):
    assert differences(tiny_model, seed=1) == differences(tiny_model, seed=1)
    assert differences(tiny_model, seed=1) != differences(tiny_model, seed=2)


@pytest.mark.parametrize("differences", ALL)
def test_a_corruption_that_moves_no_logit_counts_as_the_worst(
    tiny_model, differences, monkeypatch, torch_alone
):
    """An engine that never reads its cache gives the same logits with and without noise in it."""
    for name in ("prefill_attention", "decode_attention"):
        monkeypatch.setattr(model, name, lambda queries, *_: queries * 0)
    samples = differences(tiny_model)
    assert min(samples) > 0.1
    assert exactness._share(0.0, 0.0) == 1.0
    assert outcome(samples) == "refuted"


@pytest.mark.parametrize("differences", ON_A_CACHE)
def test_a_causal_mask_aligned_to_the_top_left_is_noticed(
    tiny_model, differences, monkeypatch, torch_alone
):
    def aligned_to_the_top_left(queries, keys, values, window):
        groups = queries.shape[1] // keys.shape[0]
        keys, values = (each.repeat_interleave(groups, 0) for each in (keys, values))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys[None], values[None], is_causal=True
        )
        return mixed[0].transpose(0, 1)

    monkeypatch.setattr(model, "prefill_attention", aligned_to_the_top_left)
    assert outcome(differences(tiny_model)) == "refuted"


def test_a_step_that_forgets_which_tokens_a_sequence_has_is_noticed(
    tiny_model, monkeypatch, torch_alone
):
    right = model.decode_attention
    monkeypatch.setattr(model, "decode_attention", lambda q, k, v, *_: right(q, k, v))
    assert outcome(batching_differences(tiny_model)) == "refuted"


@pytest.mark.parametrize("differences", ON_A_CACHE)
def test_a_rotary_position_off_by_one_is_noticed(tiny_model, differences, monkeypatch):
    right = Engine.run

    def shifted_for_one_token(self, plan):
        if len(plan.token_ids) > 1:
            return right(self, plan)
        table = self.rotary
        kept = table.turns
        table.turns = tuple(each.roll(-1, 0) for each in kept)
        logits = right(self, plan)
        table.turns = kept
        return logits

    monkeypatch.setattr(engine.Engine, "run", shifted_for_one_token)
    assert outcome(differences(tiny_model)) != "supported"


@pytest.mark.parametrize("differences", ALL[:3])
def test_a_block_of_another_sequence_is_noticed(tiny_model, differences, monkeypatch):
    """The second block of slot 0 is replaced once it is filled, as a wrong block table would."""
    right = Engine.forward

    def with_a_foreign_block(self, chunks):
        logits = right(self, chunks)
        if self.cache.lengths[0] > 18:
            self.cache.values[0][0, :, 8:16] = self.cache.values[1][0, :, :8]
        return logits

    monkeypatch.setattr(engine.Engine, "forward", with_a_foreign_block)
    assert outcome(differences(tiny_model)) == "refuted"


def test_cuts_make_up_the_sequence_and_end_with_a_decode_step():
    dice = exactness.random.Random(0)
    for total in (1, 2, 17, 40):
        cuts = exactness._cuts(total, dice)
        assert sum(cuts) == total
        assert min(cuts) == cuts[-1] == 1


def test_a_piece_that_forgets_the_pieces_before_it_is_noticed(tiny_model, monkeypatch, torch_alone):
    sound = model.prefill_attention

    def forgetful(queries, keys, values, window):
        new = len(queries)
        return sound(queries, keys[:, -new:], values[:, -new:], window)

    monkeypatch.setattr(model, "prefill_attention", forgetful)
    samples = arrival_differences(tiny_model)
    assert max(samples) > 0.1
    assert outcome(samples) != "supported"
