import pytest

from prefill_decode.engine import Engine, FirstTokenRunner, SequenceChunk


def test_a_timed_request_gives_its_first_token_again_and_again(tiny_model):
    runner = FirstTokenRunner(tiny_model, [3, 9], seed=4)
    for count in (3, 9, 3):
        alone = Engine(tiny_model, num_slots=1, capacity_tokens=9)
        logits = alone.forward([SequenceChunk(0, runner.prompts[count])])
        assert runner.request(count)() == int(logits.argmax())
        assert runner.engine.cache.lengths == [count]


def test_all_but_the_prefill_leaves_the_cache_untouched(tiny_model):
    runner = FirstTokenRunner(tiny_model, [6])
    before = [tensor.clone() for tensor in runner.engine.cache.keys]
    runner.all_but_prefill(6)()
    assert all((a == b).all() for a, b in zip(before, runner.engine.cache.keys, strict=True))
    assert runner.engine.cache.lengths == [0]


@pytest.mark.parametrize("lengths", [[], [0], [4, -1]])
def test_a_request_without_a_prompt_is_refused(tiny_model, lengths):
    with pytest.raises(ValueError, match="at least one prompt token"):
        FirstTokenRunner(tiny_model, lengths)
