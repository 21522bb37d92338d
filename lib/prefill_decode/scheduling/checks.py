"""Checks: whether a sequence could ever run, with these settings and in this cache."""

from prefill_decode.scheduling.kv_blocks import BlockPool
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import SchedulerSettings


def check_sequence(sequence: SequenceState, pool: BlockPool, settings: SchedulerSettings) -> None:
    """ValueError if a sequence, or one of the answers that share its prompt, could never run."""
    if sequence.forks:
        _check_family(sequence, settings)
    _check_room(sequence, pool, settings)
    for fork in sequence.forks:
        _check_room(fork, pool, settings)


def check_cached(sequence: SequenceState, cached_tokens: int, settings: SchedulerSettings) -> None:
    """ValueError unless a sequence that was computed elsewhere has something to run, and no more
    than one token where prompts are not cut."""
    if not 0 <= cached_tokens < sequence.known_tokens:
        raise ValueError(
            "the last known token of a sequence is still to run: cached_tokens is below "
            f"{sequence.known_tokens}; got {cached_tokens}"
        )
    if not settings.cuts_prompts and cached_tokens < sequence.known_tokens - 1:
        raise ValueError(
            f"with policy {settings.policy!r} a sequence that was computed elsewhere has one token "
            f"left to run; got {sequence.known_tokens - cached_tokens}: use policy 'chunked'"
        )


def _check_family(sequence: SequenceState, settings: SchedulerSettings) -> None:
    """Forks must be answers to this prompt, and have places all at once."""
    for fork in sequence.forks:
        same = _lengths(fork) == _lengths(sequence) and not fork.forks
        own_ids = sequence.token_ids is None or fork.token_ids is not sequence.token_ids
        if not (same and own_ids and fork.token_ids == sequence.token_ids):
            raise ValueError(
                "forks are other answers to the same prompt, each with a list of its ids and "
                f"without forks; got {fork.sequence_id!r} in {sequence.sequence_id!r}"
            )
    if 1 + len(sequence.forks) > settings.most_sequences:
        raise ValueError(
            f"{1 + len(sequence.forks)} answers to one prompt run at a time, and no more than "
            f"{settings.most_sequences} sequences may: ask for fewer or raise "
            "most_sequences"
        )


def _lengths(sequence: SequenceState) -> tuple[int, int]:
    return sequence.prompt_tokens, sequence.output_tokens


def _check_room(sequence: SequenceState, pool: BlockPool, settings: SchedulerSettings) -> None:
    """A sequence that is computed again alone must fit, in the cache and in a step."""
    room = pool.num_blocks * pool.block_tokens
    if sequence.most_cached_tokens > room:
        raise ValueError(
            f"prompt and answer must fit in the cache of {room} tokens; got "
            f"{sequence.prompt_tokens} prompt tokens and {sequence.most_output_tokens} output "
            "tokens: shorten them or give the cache more blocks"
        )
    budget = settings.most_tokens_per_step
    if not settings.cuts_prompts and sequence.most_cached_tokens > budget:
        raise ValueError(
            f"with policy {settings.policy!r} a prompt, or prompt and answer read again, "
            f"runs whole in a step of {budget} tokens; got {sequence.most_cached_tokens}: "
            "raise most_tokens_per_step or use policy 'chunked'"
        )
