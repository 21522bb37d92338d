"""Simulator: what a fleet would do with requests, in the time that its steps are predicted to take.
The scheduler and the router are the real ones; no step is run, and torch is not needed."""

from prefill_decode.simulator.calibration import Calibration, read_calibration, write_calibration
from prefill_decode.simulator.fleet import (
    ROLES,
    Fleet,
    Pool,
    Role,
    Transfer,
    blocks_that_fit,
)
from prefill_decode.simulator.fleet_file import fleet_of, read_fleet
from prefill_decode.simulator.outcome import InstanceUse, Outcome
from prefill_decode.simulator.prices import Prices
from prefill_decode.simulator.simulate import simulate

__all__ = [
    "ROLES",
    "Calibration",
    "Fleet",
    "InstanceUse",
    "Outcome",
    "Pool",
    "Prices",
    "Role",
    "Transfer",
    "blocks_that_fit",
    "fleet_of",
    "read_calibration",
    "read_fleet",
    "simulate",
    "write_calibration",
]
