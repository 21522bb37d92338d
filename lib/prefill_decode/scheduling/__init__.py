"""Scheduling: which sequences run in a step, and where their cache lies. No torch and no clock."""

from prefill_decode.scheduling.kv_blocks import BlockPool, OutOfBlocks, hash_of_block
from prefill_decode.scheduling.rehearsal import beside_streams, rehearse, rehearse_arrival
from prefill_decode.scheduling.scheduler import ScheduledStep, Scheduler
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import POLICIES, Policy, QueueFull, SchedulerSettings

__all__ = [
    "POLICIES",
    "BlockPool",
    "OutOfBlocks",
    "Policy",
    "QueueFull",
    "ScheduledStep",
    "Scheduler",
    "SchedulerSettings",
    "SequenceState",
    "beside_streams",
    "hash_of_block",
    "rehearse",
    "rehearse_arrival",
]
