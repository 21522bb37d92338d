"""Pool workers: what a fleet is split into, whole workers of data-sheet accelerators."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from prefill_decode.hardware import accelerator
from prefill_decode.simulator.fleet import Fleet, Pool, Transfer
from prefill_decode.simulator.fleet_file import fleet_of

PREFILL_TOKENS_PER_STEP = 2048  # past every accelerator's ridge, and short beside most objectives
MOST_SEQUENCES = 64


@dataclass(frozen=True)
class Workers:
    """One worker of each kind, as a pool of one instance, and what links them."""

    prefill: Pool
    decode: Pool
    whole: Pool | None = None  # of role both; None: no such rival
    transfer: Transfer = field(default_factory=Transfer)

    def __post_init__(self) -> None:
        kinds = ((self.prefill, "prefill"), (self.decode, "decode"), (self.whole, "both"))
        for pool, role in kinds:
            if pool is not None and (pool.role, pool.instances) != (role, 1):
                raise ValueError(
                    f"a search takes one worker of role {role} and counts them itself; got "
                    f"{pool.instances} of role {pool.role!r}"
                )


@dataclass(frozen=True)
class Split:
    """So many workers of each kind."""

    prefill: int = 0
    decode: int = 0
    whole: int = 0

    def __str__(self) -> str:
        return f"{self.whole} whole" if self.whole else f"{self.prefill}:{self.decode}"

    @property
    def workers(self) -> int:
        return self.prefill + self.decode + self.whole

    @property
    def ratio(self) -> float:
        """Prefill workers for each that decodes."""
        return self.prefill / self.decode


def splits_of(num_workers: int, whole: bool = True) -> list[Split]:
    """Every split of so many workers, from most decode to most prefill; then all of them whole."""
    if num_workers < 2:
        raise ValueError(f"a split needs a worker for each phase, so two; got {num_workers}")
    apart = [Split(count, num_workers - count) for count in range(1, num_workers)]
    return [*apart, *([Split(whole=num_workers)] if whole else [])]


def fleet_of_split(workers: Workers, split: Split) -> Fleet:
    if split.whole:
        if workers.whole is None:
            raise ValueError(f"these workers have no whole kind; got the split {split}")
        return Fleet((replace(workers.whole, instances=split.whole),))
    prefill = replace(workers.prefill, instances=split.prefill)
    decode = replace(workers.decode, instances=split.decode)
    return Fleet((prefill, decode), transfer=workers.transfer)


def datasheet_workers(
    model: str,
    prefill: str,
    decode: str,
    *,
    whole: str | None = None,
    devices: int = 1,
    most_sequences: int = MOST_SEQUENCES,
    most_tokens_per_step: int | None = None,
    link_bytes_per_s: float | None = None,
    folder: Path | None = None,
    **parts: Any,
) -> Workers:
    """Workers of `devices` accelerators each, by their names, with the cache that memory leaves.

    `most_tokens_per_step` is the budget of a whole worker, `parts` what else a pool of a fleet file
    may say (dtype, calibration). The link is the slower one of the two accelerators' own unless it
    is given. ValueError for unknown names, weights that leave no room and a link that no source
    prints.
    """
    common = {"model": model, "devices": devices, **parts}
    plain = {"most_sequences": most_sequences, "most_tokens_per_step": max(512, most_sequences)}
    reads = {
        "most_tokens_per_step": PREFILL_TOKENS_PER_STEP,
        "most_sequences": min(most_sequences, PREFILL_TOKENS_PER_STEP),
    }
    mixed = dict(plain)
    if most_tokens_per_step is not None:
        mixed["most_tokens_per_step"] = most_tokens_per_step
    tables: list[Mapping[str, Any]] = [
        {"name": "prefill", "role": "prefill", "accelerator": prefill, **common, **reads},
        {"name": "decode", "role": "decode", "accelerator": decode, **common, **plain},
    ]
    folder = folder or Path()
    pools = fleet_of({"pool": tables}, folder).pools
    rival = None
    if whole is not None:
        table = {"name": "whole", "accelerator": whole, **common, **mixed}
        rival = fleet_of({"pool": [table]}, folder).pools[0]
    link = link_bytes_per_s or slower_link_bytes_per_s(prefill, decode)
    return Workers(pools[0], pools[1], rival, Transfer(link))


def slower_link_bytes_per_s(*names: str) -> float:
    """The slowest scale-up link of these accelerators, one direction."""
    slowest = inf
    for name in names:
        row = accelerator(name)
        if row.link_bytes_per_s is None:
            raise ValueError(f"no source prints the link of {row.name}: say how fast caches move")
        slowest = min(slowest, row.link_bytes_per_s)
    return slowest
