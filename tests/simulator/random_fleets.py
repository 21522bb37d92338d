"""Fleets and workloads drawn at random, small enough to reach every limit."""

import random
from dataclasses import replace

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import Experts, LatentAttention, ModelSpec
from prefill_decode.request import Request
from prefill_decode.scheduling import POLICIES, ROUTINGS, SchedulerSettings
from prefill_decode.simulator import Calibration, Fleet, Pool, Transfer

DENSE = ModelSpec("dense", 4, 256, 512, 8, 2, 32, 1000, True)
EXPERTS = ModelSpec(
    "experts", 4, 256, 512, 8, 2, 32, 1000, False, experts=Experts(8, 2, 128, dense_layers=(0,))
)
LATENT = ModelSpec(
    "latent", 4, 256, 512, 8, 8, 48, 1000, True, latent=LatentAttention(None, 64, 32, 16, 32)
)
MODELS = (DENSE, EXPERTS, LATENT)
MOST_TOKENS = 120  # of a prompt, and of an answer


def hardware(dice):
    peak, bandwidth = dice.uniform(0.5e12, 2e12), dice.uniform(0.5e11, 2e11)
    return Hardware("drawn", "bfloat16", peak, bandwidth, "dice")


def calibration(dice):
    shares = (dice.uniform(0.3, 1) for _ in range(4))
    drawn = Calibration(*shares, step_s=dice.uniform(1e-6, 1e-4), sequence_s=dice.uniform(0, 1e-6))
    more = random.Random(str(drawn))  # which leaves the dice of all else as they were
    if more.random() < 0.5:
        return drawn
    rows = (1, *sorted(more.sample(range(2, 150), more.randint(0, 5))))
    by_rows = tuple(more.uniform(0.3, 1) for _ in rows)
    return replace(
        drawn,
        product_rows=rows,
        product_shares=by_rows,
        attention_by_chunk=more.random() < 0.5,
        idle_s=(1e-3, 1e-2),
        wake_s=(more.uniform(0, 1e-3), more.uniform(0, 1e-3)),
        chunk_s=more.choice([0.0, more.uniform(0, 1e-5)]),
    )


def pool(dice, name, role, model):
    policy = dice.choice(POLICIES)
    most_sequences = dice.randint(1, 8)
    budget = dice.choice([most_sequences, 40, 100]) if policy == "chunked" else 2 * MOST_TOKENS
    block_tokens = dice.choice([1, 4, 16])
    return Pool(
        name,
        model,
        hardware(dice),
        num_blocks=-(-dice.choice([2 * MOST_TOKENS, 400, 4000]) // block_tokens),
        instances=dice.randint(1, 3),
        role=role,
        block_tokens=block_tokens,
        devices=dice.choice([1, 2]),
        settings=SchedulerSettings(
            policy, max(budget, most_sequences), most_sequences, dice.choice([None, None, 4])
        ),
        calibration=calibration(dice),
        reuse=dice.random() < 0.8,
    )


def fleet(dice):
    model = dice.choice(MODELS)
    kind = dice.choice(["whole", "apart", "mixed"])
    roles = {"whole": ["both"], "apart": ["prefill", "decode"]}.get(kind, ["both", "both"])
    if kind == "mixed" and dice.random() < 0.5:
        roles = ["both", "prefill", "decode"]
    pools = tuple(pool(dice, f"pool {i}", role, model) for i, role in enumerate(roles))
    transfer = Transfer(
        dice.choice([float("inf"), dice.uniform(1e6, 1e9)]),
        dice.choice([0.0, dice.uniform(0, 1e-3)]),
        dice.random() < 0.5,
    )
    slack = dice.choice([0, 1, 4, float("inf")])
    return Fleet(pools, dice.choice(ROUTINGS), slack, transfer)


def workload(dice, number, gap_s):
    """Some prompts have pieces in common, some answers are asked about; a few come at once."""
    now_s, requests = 0.0, []
    for index in range(number):
        now_s += dice.expovariate(1 / gap_s) if dice.random() < 0.9 else 0.0
        prompt, output = dice.randint(1, MOST_TOKENS), dice.randint(1, MOST_TOKENS)
        pieces, answer = (), None
        if dice.random() < 0.7:
            first = dice.randint(1, prompt)
            pieces = ((dice.randrange(2), first),)
            if first < prompt and dice.random() < 0.5:
                pieces += ((dice.choice([7, 100 + index]), prompt - first),)
            if sum(tokens for _, tokens in pieces) == prompt and dice.random() < 0.7:
                answer = dice.choice([8, 1000 + index])
        requests.append(Request(str(index), now_s, prompt, output, pieces, answer))
    return requests


def drawn(seed, most_requests=40):
    dice = random.Random(seed)
    chosen = fleet(dice)
    requests = workload(dice, dice.randint(1, most_requests), dice.choice([1e-4, 1e-3, 1e-2]))
    return chosen, requests
