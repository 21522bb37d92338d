"""A token depends on its own row, settings, seed and place, and has the model's distribution.

The oracles are written out in plain Python over lists, and scipy's chi-square."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from prefill_decode.engine.sampling import MOST_TOP_LOGPROBS, Sampling, sample

DRAWS = 20_000
LOGITS = [0.3, -1.0, 2.0, 0.0, 0.0, -3.0, 1.2, 0.3, -0.5]
LEAST_P_VALUE = 1e-4  # the dice are fixed, so a test passes always or never


def shares(logits, temperature=1.0):
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def nucleus(logits, temperature, top_p):
    """Ids of the smallest set that reaches top_p, and their shares of it."""
    by_id = shares(logits, temperature)
    kept, mass = {}, 0.0
    for token in sorted(range(len(logits)), key=lambda token: (-by_id[token], token)):
        if mass >= top_p:
            break
        kept[token] = by_id[token]
        mass += by_id[token]
    return {token: share / mass for token, share in kept.items()}


def ids(logits, wanted, positions, copies=None):
    rows = torch.tensor([logits] * len(positions), dtype=torch.float64)
    given = wanted if isinstance(wanted, list) else [wanted] * len(positions)
    return [found.token_id for found in sample(rows, given, positions, copies)]


def assert_drawn_from(drawn, expected):
    counts = Counter(drawn)
    assert set(counts) <= set(expected)
    if len(expected) == 1:  # nothing left to chance
        return
    order = sorted(expected)
    found = chisquare([counts[t] for t in order], [expected[t] * len(drawn) for t in order])
    assert found.pvalue > LEAST_P_VALUE


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_tokens_have_the_shares_of_the_softmax(temperature):
    drawn = ids(LOGITS, Sampling(temperature, seed=7), range(DRAWS))
    assert_drawn_from(drawn, dict(enumerate(shares(LOGITS, temperature))))


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.75, 0.9, 0.999])
def test_top_p_draws_from_the_smallest_set_that_reaches_it(top_p):
    drawn = ids(LOGITS, Sampling(0.9, top_p, seed=1), range(DRAWS))
    expected = nucleus(LOGITS, 0.9, top_p)
    assert set(drawn) == set(expected)
    assert_drawn_from(drawn, expected)


def test_top_p_takes_the_lowest_ids_of_equals():
    assert set(ids([0.0] * 8, Sampling(1.0, 0.5), range(500))) == {0, 1, 2, 3}
    assert set(ids([0.0] * 8, Sampling(1.0, 0.51), range(500))) == {0, 1, 2, 3, 4}


def test_seeds_and_answers_are_dice_of_their_own():
    by_seed = ids(LOGITS, [Sampling(1.0, seed=seed) for seed in range(DRAWS)], [0] * DRAWS)
    by_copy = ids(LOGITS, Sampling(1.0), [5] * DRAWS, range(DRAWS))
    for drawn in (by_seed, by_copy):
        assert_drawn_from(drawn, dict(enumerate(shares(LOGITS))))
    pairs = Counter(
        zip(by_copy, ids(LOGITS, Sampling(1.0), [6] * DRAWS, range(DRAWS)), strict=True)
    )
    both = {
        (a, b): p * q for a, p in enumerate(shares(LOGITS)) for b, q in enumerate(shares(LOGITS))
    }
    likely = {pair: share for pair, share in both.items() if share * DRAWS > 5}
    rest = 1 - sum(likely.values())
    counts = [pairs[pair] for pair in likely]
    expected = [share * DRAWS for share in likely.values()]
    found = chisquare([*counts, DRAWS - sum(counts)], [*expected, rest * DRAWS])
    assert found.pvalue > LEAST_P_VALUE  # one position says nothing about the next


def test_a_seed_is_any_whole_number_and_its_lowest_64_bits_count():
    def tokens(seed):
        return ids(LOGITS, Sampling(1.0, seed=seed), range(100))

    assert tokens(3) == tokens(3 + 2**64) == tokens(3 - 2**64)
    assert tokens(-1) == tokens(2**64 - 1)
    assert len({tuple(tokens(seed)) for seed in (0, 1, -1, 2**63, 2**62, 10**30)}) == 6


wishes = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 4.0, 1e6]),
    top_p=st.sampled_from([1.0, 0.9, 0.4, 1e-9]),
    seed=st.integers(-(2**63), 2**63 - 1),
    top_logprobs=st.none() | st.integers(0, MOST_TOP_LOGPROBS),
)
rows = st.lists(
    st.tuples(wishes, st.integers(0, 10_000), st.integers(0, 7), st.integers(0, 2**32)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=150, deadline=None)
@given(rows, st.randoms(use_true_random=False), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_token_is_the_same_in_any_batch(rows, random, dtype):
    def logits(seed):
        return torch.randn(53, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def run(rows):
        drawn = [logits(seed) for _, _, _, seed in rows]
        wanted, positions, copies, _ = zip(*rows, strict=True)
        return sample(torch.stack(drawn), wanted, positions, copies)

    alone = [run([row])[0] for row in rows]
    assert run(rows) == alone
    order = random.sample(range(len(rows)), len(rows))
    assert run([rows[i] for i in order]) == [alone[i] for i in order]


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id():
    assert ids([1.0, 5.0, 5.0, -2.0], Sampling(), [0, 9]) == [1, 1]
    assert ids([1.0, 5.0, 5.0, -2.0], Sampling(top_p=0.1), [0, 9]) == [1, 1]
    assert ids([0.0] * 40, Sampling(top_logprobs=5), [3]) == [0]


def test_extreme_settings_are_greedy_or_uniform():
    for coldest in (Sampling(1e-6, seed=5), Sampling(5e-324, 0.5), Sampling(1.0, 1e-9)):
        assert set(ids(LOGITS, coldest, range(200))) == {2}
    for hottest in (1e6, 1e300):
        drawn = ids(LOGITS, Sampling(hottest), range(DRAWS))
        assert_drawn_from(drawn, {token: 1 / len(LOGITS) for token in range(len(LOGITS))})


def test_a_token_of_no_probability_is_never_drawn():
    masked = [-math.inf, 0.0, -math.inf, 0.5, -math.inf]
    for wanted in (Sampling(1.0), Sampling(1e300), Sampling(1.0, 0.999)):
        assert set(ids(masked, wanted, range(2000))) == {1, 3}


def test_log_probabilities_are_the_models_whatever_the_settings():
    expected = [math.log(share) for share in shares(LOGITS)]
    order = sorted(range(len(LOGITS)), key=lambda token: (-LOGITS[token], token))
    logits = torch.tensor([LOGITS], dtype=torch.float64)
    for wanted in (
        Sampling(top_logprobs=4),
        Sampling(0.2, seed=1, top_logprobs=4),
        Sampling(3.0, 0.8, seed=2, top_logprobs=4),
    ):
        (found,) = sample(logits, [wanted], [11])
        assert found.logprob == pytest.approx(expected[found.token_id], rel=1e-12)
        assert [token for token, _ in found.top_logprobs] == order[:4]
        for token, logprob in found.top_logprobs:
            assert logprob == pytest.approx(expected[token], rel=1e-12)


def test_log_probabilities_of_the_whole_vocabulary_sum_to_one():
    logits = torch.randn(3, 15, generator=torch.Generator().manual_seed(0)) * 9
    for found in sample(logits, [Sampling(1.0, top_logprobs=20)] * 3, [0, 1, 2]):
        assert len(found.top_logprobs) == 15
        assert sum(math.exp(logprob) for _, logprob in found.top_logprobs) == pytest.approx(1)
        assert dict(found.top_logprobs)[found.token_id] == found.logprob


def test_each_row_has_as_many_log_probabilities_as_it_wants():
    logits = torch.zeros(4, 30)
    wanted = [Sampling(top_logprobs=count) for count in (None, 0, 3, 1)]
    found = sample(logits, wanted, [0] * 4)
    assert [row.logprob is None for row in found] == [True, False, False, False]
    tokens = [[token for token, _ in row.top_logprobs] for row in found]
    assert tokens == [[], [], [0, 1, 2], [0]]  # all are equal: the lowest ids


def test_sampling_leaves_the_logits_as_they_are():
    logits = torch.randn(4, 20, dtype=torch.float64)
    before = logits.clone()
    sample(logits, [Sampling(0.7, top_p, top_logprobs=2) for top_p in (1, 1, 0.5, 0.5)], range(4))
    assert torch.equal(logits, before)


def test_no_rows_give_no_tokens():
    assert sample(torch.empty(0, 30), [], []) == []


@pytest.mark.parametrize("wanted", [Sampling(), Sampling(1.0), Sampling(0.5, 0.5, top_logprobs=3)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_has_no_token_and_changes_no_other(wanted, value):
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    expected = sample(logits, [wanted] * 3, [0, 0, 0])
    logits[1, slice(None) if value < 0 else 4] = value
    assert sample(logits, [wanted] * 3, [0, 0, 0]) == [expected[0], None, expected[2]]


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "temperature": [-0.1, math.nan, math.inf, 10**400, None, True, "1"],
        "top_p": [0, -0.5, 1.01, math.nan, None, "1"],
        "seed": [0.5, None, "1", True],
        "top_logprobs": [-1, 21, 1.5, True],
    }.items(),
)
def test_settings_that_mean_nothing_are_refused(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} must be"):
            Sampling(**{name: value})


def test_each_row_needs_its_own_settings():
    for wanted, positions, copies in (
        ([Sampling()], [0, 0], None),
        ([Sampling()] * 2, [0], None),
        ([Sampling()] * 2, [0, 0], [0]),
        ([Sampling()] * 3, [0] * 3, None),
    ):
        with pytest.raises(ValueError, match="one row of logits, one setting"):
            sample(torch.zeros(2, 5), wanted, positions, copies)
