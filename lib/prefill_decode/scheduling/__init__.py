"""Scheduling: which sequences run in a step, and where their cache lies. No torch and no clock."""

from prefill_decode.scheduling.checks import check_sequence
from prefill_decode.scheduling.counted_blocks import CountedPool
from prefill_decode.scheduling.kv_blocks import BlockPool, OutOfBlocks, hash_of_block
from prefill_decode.scheduling.rehearsal import beside_streams, rehearse, rehearse_arrival
from prefill_decode.scheduling.router import ROUTINGS, Router, Routing
from prefill_decode.scheduling.scheduled import ScheduledRun, ScheduledStep
from prefill_decode.scheduling.scheduler import Scheduler
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import POLICIES, Policy, QueueFull, SchedulerSettings

__all__ = [
    "POLICIES",
    "ROUTINGS",
    "BlockPool",
    "CountedPool",
    "OutOfBlocks",
    "Policy",
    "QueueFull",
    "Router",
    "Routing",
    "ScheduledRun",
    "ScheduledStep",
    "Scheduler",
    "SchedulerSettings",
    "SequenceState",
    "beside_streams",
    "check_sequence",
    "hash_of_block",
    "rehearse",
    "rehearse_arrival",
]
