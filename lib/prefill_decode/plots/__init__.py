"""Plots: figures and tables that read well on a page, on a phone, in light and in dark.

A figure is inline SVG: its text is text and takes the page's colour. A table is Markdown: the
page styles it. Both work in a notebook, and neither needs a script."""

from prefill_decode.plots.contention_figures import (
    chunks_table,
    gaps_over_time,
    price_of_chunks,
    prices_table,
)
from prefill_decode.plots.crossover_figures import (
    crossover_map,
    sweeps_table,
    sweeps_times_table,
)
from prefill_decode.plots.decode_figures import (
    generated_against_scored,
    next_token_against_context,
    throughput_against_sequences,
)
from prefill_decode.plots.endpoint_figures import shapes_of_engines, shapes_table
from prefill_decode.plots.figures import (
    Figure,
    phases_on_the_roofline,
    rate_against_tokens,
    time_against_sequences,
)
from prefill_decode.plots.fleet_figures import (
    elsewhere_table,
    fleet_table,
    goodput_against_rate,
    pool_laws_table,
    pools_map,
    pools_table,
)
from prefill_decode.plots.gap_figure import timeline_of_gap
from prefill_decode.plots.growth_figures import (
    batches_step_by_step,
    time_against_context,
    time_of_each_prompt_token,
)
from prefill_decode.plots.pace_figures import loads_together, pace_plan_table, pace_table
from prefill_decode.plots.phase_figures import (
    candidates_table,
    fleets_table,
    loads_table,
    power_table,
    ranks_by_phase,
)
from prefill_decode.plots.placement_figures import (
    conversations_table,
    fleet_sizes_table,
    placement_laws_table,
    placement_table,
    ttft_against_slack,
)
from prefill_decode.plots.replay_figures import plan_table, replays_table, waits_of_requests
from prefill_decode.plots.split_figure import rate_against_split
from prefill_decode.plots.stall_figures import (
    foreseen_table,
    gap_against_wait,
    gaps_of_ways,
    goodput_table,
    ways_table,
)
from prefill_decode.plots.tables import (
    Text,
    capacity_table,
    ceilings_table,
    first_token_table,
    setting_table,
    times_table,
    verdict_table,
    work_table,
)
from prefill_decode.plots.transfer_figures import (
    handover_table,
    hidden_by_the_prefill,
    laws_table,
    modelled_table,
    move_or_compute,
    time_against_bytes,
)
from prefill_decode.plots.way_figures import (
    devices_table,
    numbers_against_rate,
    rate_against_gap,
    services_of_ways_table,
    ways_elsewhere_table,
    ways_laws_table,
    ways_measured_table,
    ways_seen_table,
)

__all__ = [
    "Figure",
    "Text",
    "batches_step_by_step",
    "candidates_table",
    "capacity_table",
    "ceilings_table",
    "chunks_table",
    "conversations_table",
    "crossover_map",
    "devices_table",
    "elsewhere_table",
    "first_token_table",
    "fleet_sizes_table",
    "fleet_table",
    "fleets_table",
    "foreseen_table",
    "gap_against_wait",
    "gaps_of_ways",
    "gaps_over_time",
    "generated_against_scored",
    "goodput_against_rate",
    "goodput_table",
    "handover_table",
    "hidden_by_the_prefill",
    "laws_table",
    "loads_table",
    "loads_together",
    "modelled_table",
    "move_or_compute",
    "next_token_against_context",
    "numbers_against_rate",
    "pace_plan_table",
    "pace_table",
    "phases_on_the_roofline",
    "placement_laws_table",
    "placement_table",
    "plan_table",
    "pool_laws_table",
    "pools_map",
    "pools_table",
    "power_table",
    "price_of_chunks",
    "prices_table",
    "ranks_by_phase",
    "rate_against_gap",
    "rate_against_split",
    "rate_against_tokens",
    "replays_table",
    "services_of_ways_table",
    "setting_table",
    "shapes_of_engines",
    "shapes_table",
    "sweeps_table",
    "sweeps_times_table",
    "throughput_against_sequences",
    "time_against_bytes",
    "time_against_context",
    "time_against_sequences",
    "time_of_each_prompt_token",
    "timeline_of_gap",
    "times_table",
    "ttft_against_slack",
    "verdict_table",
    "waits_of_requests",
    "ways_elsewhere_table",
    "ways_laws_table",
    "ways_measured_table",
    "ways_seen_table",
    "ways_table",
    "work_table",
]
