"""Fleet: pools of like instances, how requests are routed, and what links the pools.

An instance of role `both` serves a request whole. One of role `prefill` reads the prompt and
samples the first token; the cache then travels to an instance of role `decode`, which samples the
rest. Roles may be mixed: a request goes to any instance that prefills.

Ignores: what splitting one model over the devices of an instance costs: such an instance has the
         ceilings of all its devices together.
"""

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Literal, get_args

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import Router, Routing, SchedulerSettings
from prefill_decode.simulator.calibration import Calibration

Role = Literal["both", "prefill", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)
MOST = {"instances": 10**6, "num_blocks": 10**8, "block_tokens": 10**6, "devices": 10**6}
MOST_BLOCKS = 2 * 10**8  # of all instances: the simulator keeps a number for each


@dataclass(frozen=True)
class Pool:
    """`instances` alike; `num_blocks` of `block_tokens` are the cache of each."""

    name: str
    model: ModelSpec
    hardware: Hardware  # of one device
    num_blocks: int
    instances: int = 1
    role: Role = "both"
    block_tokens: int = 16
    devices: int = 1  # of an instance
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    calibration: Calibration = field(default_factory=Calibration)
    reuse: bool = True  # of prefixes

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"{self.name}: role is one of {', '.join(ROLES)}; got {self.role!r}")
        for name, most in MOST.items():
            value = getattr(self, name)
            if not (isinstance(value, int) and 1 <= value <= most):
                raise ValueError(
                    f"{self.name}: {name} is a whole number from 1 to {most}; got {value!r:.60}"
                )
        if self.instances * self.num_blocks > MOST_BLOCKS:
            raise ValueError(
                f"{self.name}: all instances have at most {MOST_BLOCKS} blocks of cache; got "
                f"{self.instances} x {self.num_blocks}: simulate fewer instances"
            )

    @property
    def ceilings(self) -> Hardware:
        """Of all devices of one instance."""
        return replace(
            self.hardware,
            peak_flops_per_s=self.devices * self.hardware.peak_flops_per_s,
            bandwidth_bytes_per_s=self.devices * self.hardware.bandwidth_bytes_per_s,
        )


@dataclass(frozen=True)
class Transfer:
    """Links for caches. One for every prefill instance, or one that all share; those that travel
    on a link at the same time share its bandwidth evenly."""

    bandwidth_bytes_per_s: float = inf
    latency_s: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(
                f"a link has a positive bandwidth; got {self.bandwidth_bytes_per_s} byte/s"
            )
        if not (isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(f"a link's latency is 0 s or more; got {self.latency_s}")


@dataclass(frozen=True)
class Fleet:
    pools: tuple[Pool, ...]
    routing: Routing = "least_loaded"
    slack: float = inf  # requests: see Router
    transfer: Transfer = Transfer()

    def __post_init__(self) -> None:
        Router(self.routing, self.slack)
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names):
            raise ValueError(f"pools have names of their own; got {', '.join(names)}")
        roles = {pool.role for pool in self.pools}
        if not roles & {"both", "prefill"}:
            raise ValueError(
                "a fleet needs a pool that prefills: role 'both' or 'prefill'; got "
                f"{', '.join(sorted(roles)) or 'no pool'}"
            )
        if ("prefill" in roles) != ("decode" in roles):
            raise ValueError(
                "what a prefill pool has read a decode pool must answer, and only that: give both "
                f"or neither; got {', '.join(sorted(roles))}"
            )
        sizes = {p.model.kv_bytes(1) for p in self.pools if p.role != "both"}
        if len(sizes) > 1:
            raise ValueError(
                "a cache moves between pools of one model; got tokens of "
                f"{', '.join(f'{size:g}' for size in sorted(sizes))} bytes"
            )

    @property
    def num_devices(self) -> int:
        return sum(pool.instances * pool.devices for pool in self.pools)


def blocks_that_fit(
    model: ModelSpec, memory_bytes: float, block_tokens: int = 16, share: float = 0.9
) -> int:
    """Blocks of cache beside the weights in `share` of the memory of an instance.

    An engine says how many it has: take that number where there is one. ValueError if the weights
    leave no room for one.
    """
    room_bytes = share * memory_bytes - model.weight_bytes
    blocks = int(room_bytes // model.kv_bytes(block_tokens))
    if blocks < 1:
        raise ValueError(
            f"{model.name} has {model.weight_bytes / 1e9:.3g} GB of weights, which leave no room "
            f"for a cache in {share:g} of {memory_bytes / 1e9:.3g} GB: use more devices, or a "
            "smaller dtype"
        )
    return blocks
