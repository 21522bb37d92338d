"""Calibrating: what this machine's engine reaches of the roofline, for the simulator; and requests
run on the engine in real time, to hold predictions against."""

from prefill_decode.calibrating.design import Episode, design, rows_of
from prefill_decode.calibrating.episodes import EpisodeRunner
from prefill_decode.calibrating.fit import StepTime, fit_calibration, residuals
from prefill_decode.calibrating.measuring import (
    Calibrator,
    blocks_beside_weights,
    measure_calibration,
    use_threads,
)
from prefill_decode.calibrating.replay_runner import ReplayRunner, short_calibrator
from prefill_decode.calibrating.replaying import replay, warm_up

__all__ = [
    "Calibrator",
    "Episode",
    "EpisodeRunner",
    "ReplayRunner",
    "StepTime",
    "blocks_beside_weights",
    "design",
    "fit_calibration",
    "measure_calibration",
    "replay",
    "residuals",
    "rows_of",
    "short_calibrator",
    "use_threads",
    "warm_up",
]
