"""The scheduler by hand: refusals, edges, preemption, forks, reuse and cancellation."""

import pytest

from prefill_decode.scheduling import (
    BlockPool,
    OutOfBlocks,
    QueueFull,
    Scheduler,
    SchedulerSettings,
    SequenceState,
)
from prefill_decode.step import Chunk
from tests.scheduling.shadow import alone, chained_hash
from tests.scheduling.watched import Watched


def sequence(prompt_tokens=1, most_output_tokens=1, forks=()):
    return SequenceState("s", prompt_tokens, most_output_tokens, forks=list(forks))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"policy": "fair"},
            "^policy is one of chunked, decode_first, prefill_first, static; got 'fair'$",
        ),
        (
            {"most_tokens_per_step": 3, "most_sequences": 4},
            "^every running sequence must be able to decode in one step: most_sequences is from 1 "
            "to most_tokens_per_step; got 4 and 3$",
        ),
        ({"most_sequences": 0}, "got 0 and 512$"),
        (
            {"most_waiting": 0},
            "^every sequence waits until the next step: most_waiting is 1 or more, or None for no "
            "limit; got 0$",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        SchedulerSettings(**arguments)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (1.0, 1)])
def test_a_sequence_has_a_prompt_and_an_answer(prompt, output):
    with pytest.raises(ValueError, match="a sequence needs at least one prompt token and one out"):
        SequenceState("s", prompt, output)


def test_a_new_sequence_brings_the_ids_of_its_prompt():
    with pytest.raises(ValueError, match=r"of its prompt .* of its answer; got 2 ids for 3 tokens"):
        SequenceState("s", 3, 1, [1, 2])


def test_a_request_as_long_as_the_cache_runs_and_one_token_more_is_refused():
    scheduler = Scheduler(BlockPool(3, 4))
    with pytest.raises(
        ValueError,
        match="prompt and answer must fit in the cache of 12 tokens; got 8 prompt tokens and 6 "
        "output tokens: shorten them or give the cache more blocks",
    ):
        scheduler.add(sequence(8, 6))
    assert not scheduler.has_work
    for prompt, output in [(8, 5), (12, 1), (1, 12)]:
        watched = Watched(SchedulerSettings(), 3, 4)
        watched.add([1] * prompt, [output])
        watched.drain()
        assert len(watched.ended) == 1


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "static"])
def test_what_cannot_be_read_again_whole_is_refused_where_prompts_are_not_cut(policy):
    scheduler = Scheduler(BlockPool(9, 4), SchedulerSettings(policy, 8, 4))
    scheduler.add(sequence(6, 3))
    with pytest.raises(
        ValueError,
        match=f"^with policy '{policy}' a prompt, or prompt and answer read again, runs whole in a "
        "step of 8 tokens; got 9: raise most_tokens_per_step or use policy 'chunked'$",
    ):
        scheduler.add(sequence(6, 4))
    Scheduler(BlockPool(9, 4), SchedulerSettings("chunked", 8, 4)).add(sequence(6, 4))


def test_a_family_larger_than_all_places_is_refused():
    scheduler = Scheduler(BlockPool(9, 4), SchedulerSettings(most_sequences=2))
    scheduler.add(sequence(forks=[sequence()]))
    with pytest.raises(
        ValueError,
        match="3 answers to one prompt run at a time, and no more than 2 sequences may: ask for "
        "fewer or raise most_sequences",
    ):
        scheduler.add(sequence(forks=[sequence(), sequence()]))


def test_a_fork_that_could_never_end_is_refused_with_its_family():
    scheduler = Scheduler(BlockPool(2, 4))
    with pytest.raises(ValueError, match="got 4 prompt tokens and 6 output tokens"):
        scheduler.add(sequence(4, 1, [sequence(4, 6)]))
    assert not scheduler.has_work


def test_forks_are_answers_to_the_same_prompt():
    ids = [1, 2]
    pairs = [
        (sequence(2), sequence(3)),
        (sequence(1), sequence(1, forks=[sequence()])),
        (SequenceState("s", 2, 1, [1, 2]), SequenceState("s", 2, 1, [1, 3])),
        (SequenceState("s", 2, 1, ids), SequenceState("s", 2, 1, ids)),
    ]
    for parent, fork in pairs:
        parent.forks = [fork]
        with pytest.raises(
            ValueError,
            match="forks are other answers to the same prompt, each with a list of its ids and "
            "without forks; got 's' in 's'",
        ):
            Scheduler(BlockPool(9, 4)).add(parent)


def test_no_more_wait_than_may_and_a_step_makes_room_for_others():
    scheduler = Scheduler(BlockPool(9, 4), SchedulerSettings(most_waiting=2, most_sequences=1))
    scheduler.add(sequence(1, 2))
    scheduler.add(sequence())
    with pytest.raises(QueueFull, match="2 sequences wait, and no more than 2 may"):
        scheduler.add(sequence())
    assert scheduler.next_step().tokens == 1
    scheduler.add(sequence())


def test_nothing_to_do_is_no_step():
    scheduler = Scheduler(BlockPool(1, 1))
    assert scheduler.next_step() is None
    assert not scheduler.has_work


def test_blocks_of_one_token_and_prompts_of_one_token():
    watched = Watched(SchedulerSettings("chunked", 2, 2), 6, 1)
    watched.add([1], [3])
    watched.add([1], [6])
    watched.drain()
    assert len(watched.ended) == 2


def test_the_last_gives_way_and_carries_on_with_what_it_knew():
    watched = Watched(SchedulerSettings("chunked", 8, 4), 3, 2, reuse=False)
    first = watched.add([1, 1], [4])
    second = watched.add([2, 2], [3])
    watched.step()
    step = watched.step()  # both need a second block, and one is free
    assert step.preempted == [second]
    assert [chunk for _, chunk in step.chunks] == [Chunk(1, 2)]
    assert second.token_ids == alone([2, 2], 1, 1, frozenset())[0]
    assert list(watched.scheduler.waiting) == [second]
    watched.drain()
    assert watched.ended == [first, second]
    assert (first.preemptions, second.preemptions, watched.scheduler.num_preemptions) == (0, 1, 1)


def test_answers_to_one_prompt_part_after_it():
    watched = Watched(SchedulerSettings("chunked", 8, 4), 9, 4)
    first = watched.add([1, 2, 3], [3, 3, 3])
    step = watched.step()
    assert step.samples == [(0, first), *((0, fork) for fork in watched.scheduler.running[1:])]
    assert first.forks == []
    table = list(first.blocks)
    assert all(s.blocks == table for s in watched.scheduler.running)
    step = watched.step()
    assert [source for source, _ in step.copies] == table * 2, "the last holder writes in place"
    watched.drain()
    assert len({tuple(watched.ids[answer]) for answer in watched.ended}) == 3


def test_a_prompt_that_fills_its_blocks_is_forked_without_a_copy():
    watched = Watched(SchedulerSettings("chunked", 8, 4), 9, 4)
    watched.add([1, 2, 3, 4], [3, 3])
    watched.step()
    assert watched.step().copies == []
    watched.drain()


def test_answers_of_one_token_to_one_prompt_end_with_it():
    watched = Watched(SchedulerSettings("chunked", 8, 4), 2, 2)
    first = watched.add([1, 2, 3], [1, 1, 1])
    forks = list(first.forks)
    watched.step()
    assert watched.ended == [first, *forks]
    assert not watched.scheduler.has_work
    assert watched.pool.num_free == 2


def test_forks_give_way_after_those_that_arrived_later():
    watched = Watched(SchedulerSettings("chunked", 8, 4), 4, 2)
    family = watched.add([1, 1], [3, 3])
    later = watched.add([2, 2], [3])
    fork = family.forks[0]
    watched.step()
    assert watched.scheduler.running == [family, fork, later]
    assert watched.step().preempted == [later]


def test_a_cancelled_prompt_leaves_its_work_to_its_forks():
    for steps in (0, 1):  # while it waits, while it is under way
        watched = Watched(SchedulerSettings("chunked", 4, 4), 9, 4)
        first = watched.add([1] * 10, [2, 2, 2])
        heir, other = first.forks
        for _ in range(steps):
            watched.step()
        watched.cancel(first)
        assert watched.live == [heir, other]
        assert (first.blocks, first.cached_tokens) == ([], 0)
        assert heir.cached_tokens == 4 * steps
        watched.drain()
        assert watched.ended == [heir, other]
        assert watched.steps == 4


def test_cancelling_forks_that_are_not_yet_made_frees_their_places():
    watched = Watched(SchedulerSettings("chunked", 4, 3), 9, 4)
    first = watched.add([1] * 6, [2, 2, 2])
    later = watched.add([2], [2])
    watched.step()
    assert watched.scheduler.running == [first]
    watched.cancel(first.forks[1])
    watched.step()
    assert later in watched.scheduler.running
    watched.drain()


def test_cancelling_strangers_and_those_that_ended_changes_nothing():
    watched = Watched(SchedulerSettings(), 9, 4)
    first = watched.add([1] * 6, [1])
    watched.add([2], [5])
    watched.step()
    watched.cancel(first)
    watched.scheduler.cancel(sequence(forks=[sequence()]))
    watched.check()
    watched.drain()


def test_when_a_static_batch_is_cancelled_the_next_begins():
    watched = Watched(SchedulerSettings("static", 8, 1), 9, 4)
    first, second = watched.add([1], [8]), watched.add([2], [2])
    watched.step()
    watched.step()
    watched.cancel(first)
    watched.step()
    assert watched.scheduler.running == [second]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 64])
@pytest.mark.parametrize("block_tokens", [1, 2, 3, 4, 16])
def test_what_is_found_again_does_not_depend_on_how_it_was_cut(budget, block_tokens):
    watched = Watched(SchedulerSettings("chunked", budget, 1), 64, block_tokens)
    prompt = [1, 2, 3, 4, 5, 0, 1, 1, 2, 3, 5]
    first = watched.add(prompt, [3])
    watched.drain()
    cached = len(watched.ids[first]) - 1  # the last token of an answer is never run
    for tokens in range(1, len(watched.ids[first]) + 1):
        again = watched.add(watched.ids[first][:tokens], [1])
        watched.drain()
        most = min(tokens - 1, cached)  # the last of a prompt must run
        assert again.reused_tokens == most // block_tokens * block_tokens


def test_a_prompt_computed_in_the_same_step_is_not_found_yet():
    watched = Watched(SchedulerSettings("chunked", 64, 4), 64, 2)
    watched.add([1, 2, 3, 4, 5], [1])
    twin = watched.add([1, 2, 3, 4, 5], [1])
    watched.step()
    assert twin.reused_tokens == 0


def test_a_first_in_line_that_does_not_fit_holds_nothing_and_is_asked_again():
    watched = Watched(SchedulerSettings("chunked", 64, 4), 6, 2)
    watched.add([1, 2, 3, 4, 5], [1])
    watched.drain()  # two blocks are remembered
    first = watched.add([2, 2, 2], [4])
    watched.step()
    blocked = watched.add([1, 2, 3, 4, 5, 1, 1, 1, 1], [1])
    while first in watched.live:
        watched.step()
        watched.check()  # recounts who holds what
        assert blocked in watched.live
    watched.step()
    assert blocked in watched.ended
    assert blocked.reused_tokens == 4


def test_with_reuse_off_no_prompt_is_hashed():
    watched = Watched(SchedulerSettings(), 9, 2, reuse=False)
    first = watched.add([1, 2, 3, 4, 5], [2])
    watched.step()
    assert first.block_hashes == []


def test_only_full_blocks_have_contents():
    known = SequenceState("s", 5, 1, [1, 2, 3, 4, 5])
    assert known.hashes_up_to(1, 2) == [chained_hash((1, 2), 2)]
    assert known.hashes_up_to(9, 2) == [chained_hash((1, 2), 2), chained_hash((1, 2, 3, 4), 2)]
    known.token_ids.append(6)
    assert known.hashes_up_to(9, 2)[2:] == [chained_hash((1, 2, 3, 4, 5, 6), 2)]
    assert known.hashes_up_to(1, 2) == [chained_hash((1, 2), 2)]
    assert SequenceState("s", 5, 1).hashes_up_to(9, 2) == []


class CountingPool(BlockPool):
    num_offered = 0

    def publish(self, block, contents):
        self.num_offered += 1
        super().publish(block, contents)


def test_a_block_is_offered_once_by_each_who_filled_it():
    settings, pool = SchedulerSettings("chunked", 5, 4), CountingPool(64, 2)
    watched = Watched(settings, 64, 2)
    watched.pool, watched.scheduler = pool, Scheduler(pool, settings)
    watched.add([1, 2, 3, 4, 5, 1, 2, 3], [5, 5])
    watched.drain()
    assert pool.num_offered == 4 + 2 * 2  # the prompt's, then those of two answers
    watched.add([1, 2, 3, 4, 5, 1, 2, 3, 7, 7, 7], [1])
    watched.drain()
    assert pool.num_offered == 8 + 1  # four are found again


def test_a_stop_token_ends_an_answer_and_stays_in_it():
    ids, reason = alone([1], 0, 50, frozenset({0}))
    assert reason == "stop"
    assert ids[-1] == 0
    watched = Watched(SchedulerSettings(), 64, 4)
    first = watched.add([1], [50], frozenset({0}))
    watched.drain()
    assert (first.token_ids, first.finish_reason) == (ids, "stop")
    assert first.output_tokens == len(ids) - 1


def test_sequences_with_ids_need_the_ids_that_were_sampled():
    scheduler = Scheduler(BlockPool(4, 4))
    scheduler.add(SequenceState("s", 1, 1, [1]))
    with pytest.raises(AssertionError, match="need the ids that were sampled"):
        scheduler.complete(scheduler.next_step())


def test_without_a_token_to_choose_a_sequence_fails_and_nothing_of_it_stays():
    scheduler = Scheduler(BlockPool(4, 2))
    failing = SequenceState("f", 4, 3, [1, 2, 3, 4], hold=True)
    other = SequenceState("o", 2, 3, [5, 6])
    scheduler.add(failing)
    scheduler.add(other)
    assert scheduler.complete(scheduler.next_step(), [None, 7]) == [failing]
    assert (failing.finish_reason, failing.token_ids) == ("failed", [1, 2, 3, 4])
    assert (other.finish_reason, other.token_ids) == (None, [5, 6, 7])
    assert scheduler.held == []
    assert scheduler.pool.num_free == 3
    again = SequenceState("a", 4, 1, [1, 2, 3, 4])
    scheduler.add(again)
    scheduler.next_step()
    assert again.reused_tokens == 0


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first", "static"])
def test_a_policy_that_cuts_nothing_takes_over_only_what_is_ready_to_decode(policy):
    scheduler = Scheduler(BlockPool(20, 4), SchedulerSettings(policy, 40, 4))
    with pytest.raises(ValueError, match="has one token left to run; got 5"):
        scheduler.accept(SequenceState("a", 10, 3), 5)
    scheduler.accept(SequenceState("b", 10, 3), 9)
    while (step := scheduler.next_step()) is not None:
        scheduler.complete(step)
    assert scheduler.pool.num_free == 20


def test_what_is_read_elsewhere_has_its_blocks_at_once_and_runs_when_it_is_started():
    watched = Watched(SchedulerSettings(), 4, 4)
    reserved = watched.reserve([1] * 8, 5, known=1)
    watched.check()
    assert (len(reserved.blocks), watched.pool.num_free) == (3, 1)
    assert not watched.scheduler.has_work
    assert watched.step() is None
    watched.add([1] * 8, [3])  # finds nothing of it in the cache, and must wait for blocks
    assert watched.step() is None
    watched.start(reserved)
    assert [s.reused_tokens for s, _ in watched.step().chunks] == [0, 4], "now it finds it"
    watched.drain()
    assert len(watched.ended) == 2


def test_who_waits_for_blocks_has_them_before_what_is_read_elsewhere():
    scheduler = Scheduler(BlockPool(4, 4))
    scheduler.add(sequence(16, 1))
    with pytest.raises(OutOfBlocks, match="1 sequences wait for blocks"):
        scheduler.reserve(sequence(1, 2))
    with pytest.raises(ValueError, match="must fit in the cache of 16 tokens"):
        scheduler.reserve(sequence(16, 2))
    while (step := scheduler.next_step()) is not None:
        scheduler.complete(step)
    scheduler.reserve(sequence(1, 2))
    assert scheduler.pool.num_free == 3


@pytest.mark.parametrize(("most", "token_id"), [(5, 3), (2, 1)])
def test_a_token_that_ends_its_answer_starts_nothing(most, token_id):
    scheduler = Scheduler(BlockPool(4, 4))
    reserved = SequenceState("s", 2, most, [1, 2, 4], frozenset({3}), output_tokens=1)
    scheduler.reserve(reserved)
    with pytest.raises(ValueError, match=f"got token {token_id} as number 2 of at most {most}"):
        scheduler.start(reserved, token_id)
    assert scheduler.reserved == [reserved]
    scheduler.cancel(reserved)
    assert (scheduler.pool.num_free, scheduler.roster.places) == (4, 0)


def test_a_sequence_that_has_ended_may_hold_its_blocks_until_they_are_released():
    watched = Watched(SchedulerSettings(), 4, 4, reuse=False)
    held = watched.add([1] * 8, [1], hold=True)
    watched.step()
    assert (held.finish_reason, len(held.blocks), watched.pool.num_free) == ("length", 2, 2)
    assert not watched.scheduler.has_work
    watched.add([1] * 12, [1])
    assert watched.step() is None, "what is held is taken by nobody"
    watched.release(held)
    assert watched.step() is not None
    watched.drain()


def test_a_sequence_may_know_some_of_its_answer_and_samples_at_least_one_token():
    for known in (1, 3):
        watched = Watched(SchedulerSettings(), 64, 4)
        first = watched.add([1, 2], [4], known=known)
        watched.drain()
        assert first.token_ids == alone([1, 2], 0, 4, frozenset())[0]
    with pytest.raises(ValueError, match="at least one token of its answer to run; got 4 that are"):
        SequenceState("s", 1, 4, output_tokens=4)
