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
from prefill_decode.simulator.longest_gap import LongestGap, longest_gap
from prefill_decode.simulator.outcome import InstanceUse, Outcome
from prefill_decode.simulator.pool_law import Law, law_of, whole_per_s
from prefill_decode.simulator.pool_search import (
    Found,
    Search,
    at_rate,
    best_split,
    carried_per_s,
    greatest_rate,
    search,
    share_within,
)
from prefill_decode.simulator.pool_workers import (
    Split,
    Workers,
    datasheet_workers,
    fleet_of_split,
    splits_of,
)
from prefill_decode.simulator.predicted import (
    Predicted,
    intervals,
    near_saturation,
    simulate_fits,
    under_fits,
)
from prefill_decode.simulator.prices import Prices, filled_up, products_of_step
from prefill_decode.simulator.simulate import simulate

__all__ = [
    "ROLES",
    "Calibrated",
    "Calibration",
    "Fleet",
    "Found",
    "InstanceUse",
    "Law",
    "LongestGap",
    "Outcome",
    "Pool",
    "Predicted",
    "Prices",
    "Residual",
    "Role",
    "Search",
    "Split",
    "Transfer",
    "Workers",
    "at_rate",
    "best_split",
    "blocks_that_fit",
    "carried_per_s",
    "datasheet_workers",
    "filled_up",
    "fleet_of",
    "fleet_of_split",
    "greatest_rate",
    "intervals",
    "law_of",
    "longest_gap",
    "near_saturation",
    "products_of_step",
    "read_calibrated",
    "read_calibration",
    "read_fleet",
    "search",
    "share_within",
    "simulate",
    "simulate_fits",
    "splits_of",
    "under_fits",
    "whole_per_s",
    "write_calibrated",
    "write_calibration",
]
