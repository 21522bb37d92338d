"""Runs made by hand, for tests of what is said about them."""

from prefill_decode.change import Quantity
from prefill_decode.results import Run
from prefill_decode.statistics import Interval

CLAIM = "decode_is_bandwidth_bound"
BATCH, SHARE, TIME = "decode x8 / decode x1", "share of bandwidth, decode x1", "time, decode x1"


def ratio(median, low, high, better="lower"):
    return Quantity(Interval(median, low, high, 19, 0.98), "1", better)


def make_run(
    slug="here-6a09",
    title="Here",
    date="2026-11-30T07:00:00Z",
    outcome="supported",
    run_id="0" * 16,
    setting=None,
    host="f" * 16,
    **quantities,
):
    """A run that measured `BATCH`, and what `quantities` adds or replaces by name."""
    measured = {BATCH: ratio(1.5, 1.25, 1.75)} | quantities
    told = {BATCH: (1.0, 8.0), SHARE: (1.0, 0.25)}
    return Run(
        run_id=run_id,
        claim=CLAIM,
        date=date,
        commit="abc123",
        library_version="0.1",
        outcome=outcome,
        reason="a reason",
        failed_control=False,
        machine={"slug": slug, "title": title, "host": host},
        setting=setting or {},
        quantities=measured,
        expected={name: told[name] for name in measured if name in told},
    )
