"""TransferRunner: all that the price of a transfer is judged by, ready to be timed in one run.

Loads of several sizes over every transport (`links`), from which a law is fitted, and one of the
size of a prompt's cache that the law has not seen; that prompt's cache over paced links, computed
again, and layer by layer (`handovers`). `found` gives what a claim predicts, by name."""

from collections.abc import Callable
from typing import Any

from prefill_decode.disaggregated.handover_exactness import handover_differences
from prefill_decode.disaggregated.handover_runner import RESERVED, HandoverRunner
from prefill_decode.disaggregated.link import LARGE_BYTES, OWN, LinkRunner, Load
from prefill_decode.disaggregated.link_report import fits_of
from prefill_decode.disaggregated.tampering import flips_noticed
from prefill_decode.measure import Timings, processor_time_s
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork, step_work
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.transfer_cost import LinkFit
from prefill_decode.units import format_bytes

PARTS = (1 / 8, 1 / 2, 2)  # of the cache: the sizes that the law is fitted to, beside a tiny one
TINY = Load(8)

BYTES = "bytes on the wire / those of the prompt's tokens"
BREAK_EVEN = "break-even link, factor off bytes / prefill"
HIDDEN = "break-even link, wait layer by layer / as a whole"
WAITING = "half that link, factor by which the law of waiting misses"
LOGITS = "logits after a transfer / corrupted"
FLIPS = "share of turned bits that were noticed"


class TransferRunner:
    """`close` ends the other processes."""

    reserved = RESERVED  # times the prompt, that an unpaged cache holds ready

    def __init__(
        self, model: ModelSpec, prompt_tokens: int, *, threads: int, device: str, seed: int = 0
    ) -> None:
        self.model, self.seed = model, seed
        self.handovers = HandoverRunner(
            model, prompt_tokens, threads=threads, device=device, seed=seed
        )
        try:
            self.held, self.fitted = loads_around(self.handovers.handover.moved_bytes)
            self.links = LinkRunner([*self.fitted, self.held], OWN, seed=seed)
        except BaseException:
            self.handovers.close()
            raise
        size = format_bytes(self.held.num_bytes)
        self.misses = {one: f"{one}: {size}, law misses by" for one in self.links.transports}
        self.share = f"{size} over tcp / prefill"

    @property
    def moved_bytes(self) -> int:
        """Of the prompt's cache."""
        return self.handovers.handover.moved_bytes

    @property
    def works(self) -> dict[str, StepWork]:
        return {name: step_work(self.model, c) for name, c in self.handovers.chunks.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """What a record says of the run."""
        return {
            "num_layers": self.model.num_layers,
            "prompt_tokens": self.handovers.prompt_tokens,
            "block_tokens": self.handovers.room.block_tokens,
            "transports": list(self.links.transports),
            "missing": dict(self.links.missing),
        }

    @property
    def names(self) -> dict[str, dict[int, str]]:
        """Of the times of each transport, by bytes."""
        loads = [*self.fitted, self.held]
        transports = self.links.transports
        return {t: {x.num_bytes: self.links.name(t, x) for x in loads} for t in transports}

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        return self.handovers.steps | self.links.steps

    def own_s(self) -> float:
        return processor_time_s([self.handovers.pid, self.links.pid])

    def seen(self, times: Timings) -> Timings:
        """What the steps noted, in the place of the steps."""
        return self.links.seen(self.handovers.seen(times))

    def fits(self, times: Timings) -> dict[str, LinkFit]:
        return fits_of(times, self.links.transports, self.fitted)

    def found(self, times: Timings) -> dict[str, Interval]:
        """What was predicted, measured."""
        handovers, fits, size = self.handovers, self.fits(times), self.held.num_bytes
        held = {one: times.times_s(self.links.name(one, self.held)) for one in fits}
        half, even = list(handovers.waits)
        return {
            BYTES: median_interval(handovers.shares_of_bytes),
            BREAK_EVEN: median_interval(handovers.break_even_misses(times)),
            HIDDEN: times.ratio(handovers.waits[even], over=handovers.moves[even]),
            WAITING: median_interval(handovers.wait_misses(times, half)),
            self.share: times.ratio(self.links.name("tcp", self.held), over=handovers.compute),
            **{name: fits[one].misses(size, held[one]) for one, name in self.misses.items()},
        }

    def controls(self) -> dict[str, Interval]:
        """Takes some seconds, and processes of its own."""
        differences = handover_differences(self.model, self.links.transports, self.seed)
        return {
            LOGITS: median_interval(differences),
            FLIPS: median_interval(flips_noticed(self.seed)),
        }

    def close(self) -> None:
        self.handovers.close()
        self.links.close()


def loads_around(num_bytes: int) -> tuple[Load, list[Load]]:
    """A load of about so many bytes, and others around it, in whole pairs of large blocks."""
    pair = 2 * LARGE_BYTES

    def load(wanted: float) -> Load:
        return Load(max(1, round(wanted / pair)) * pair)

    held = load(num_bytes)
    others = {load(part * held.num_bytes) for part in PARTS} - {held}
    return held, [TINY, *sorted(others, key=lambda each: each.num_bytes)]
