"""Simulator: what a fleet would do with requests, in the time that its steps are predicted to take.
The scheduler and the router are the real ones; no step is run, and torch is not needed."""

from prefill_decode.simulator.calibrated import (
    Calibrated,
    Residual,
    read_calibrated,
    write_calibrated,
)
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
from prefill_decode.simulator.predicted import (
    Predicted,
    intervals,
    near_saturation,
    simulate_fits,
    under_fits,
)
from prefill_decode.simulator.prices import Prices, products_of_step
from prefill_decode.simulator.simulate import simulate

__all__ = [
    "ROLES",
    "Calibrated",
    "Calibration",
    "Fleet",
    "InstanceUse",
    "Outcome",
    "Pool",
    "Predicted",
    "Prices",
    "Residual",
    "Role",
    "Transfer",
    "blocks_that_fit",
    "fleet_of",
    "intervals",
    "near_saturation",
    "products_of_step",
    "read_calibrated",
    "read_calibration",
    "read_fleet",
    "simulate",
    "simulate_fits",
    "under_fits",
    "write_calibrated",
    "write_calibration",
]
