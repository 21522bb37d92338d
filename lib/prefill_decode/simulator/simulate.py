"""Simulate: requests through a fleet, without running a step.

Time jumps from event to event: a request arrives, a run of steps ends, a cache has travelled. What
happens at one instant is taken together before any instance begins its next step. An instance is
cut short only by what its next step may hold, so the cost follows the events and not the tokens.

Counts:  queues, batches, chunks, blocks, preemption, prefixes found in caches, transfers that share
         a link. A prefill instance holds a prompt's blocks until its cache has left, and it leaves
         when the decode instance has reserved blocks for it, between two of its steps.
Ignores: the router's own time and the client's; a transfer's start before the prompt is read
         whole; prompts that a coordinator keeps back while no decode instance has a place.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from prefill_decode.request import Request
from prefill_decode.scheduling import QueueFull, Router, check_sequence
from prefill_decode.simulator.fleet import Fleet
from prefill_decode.simulator.instance import Instance
from prefill_decode.simulator.links import Link
from prefill_decode.simulator.outcome import Outcome
from prefill_decode.simulator.prices import Prices
from prefill_decode.simulator.sequences import Contents, Served
from prefill_decode.simulator.token_log import TokenLog

PROGRESS_REQUESTS = 1000  # between two calls of `progress`

Progress = Callable[[int], None]


def simulate(
    fleet: Fleet,
    requests: Sequence[Request],
    step_by_step: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """What becomes of every request. `requests` may come in any order; those of one instant are
    taken in theirs.

    `step_by_step` plays every step by itself, at the roofline's price: much slower, the same
    result but for rounding. `progress` is called with the number of requests that have arrived.
    ValueError for no requests.
    """
    if not requests:
        raise ValueError("a simulation needs at least one request; got none")
    return _Simulation(fleet, requests, step_by_step).run(progress)


class _Simulation:
    def __init__(self, fleet: Fleet, requests: Sequence[Request], step_by_step: bool) -> None:
        self.fleet, self.requests = fleet, requests
        num_instances = sum(pool.instances for pool in fleet.pools)
        self.log = TokenLog(len(requests), num_instances)
        self.instances: list[Instance] = []
        for pool in fleet.pools:
            prices = Prices(pool.model, pool.ceilings, pool.calibration)
            for _ in range(pool.instances):
                number = len(self.instances)
                self.instances.append(Instance(number, pool, prices, self.log, step_by_step))
        self.fronts = [one for one in self.instances if one.pool.role != "decode"]
        self.decoders = [one for one in self.instances if one.pool.role == "decode"]
        self.front_router = Router(fleet.routing, fleet.slack)
        self.decode_router = Router("least_loaded")
        self.front_loads, self.decode_loads = [0] * len(self.fronts), [0] * len(self.decoders)
        self.place = {one.number: i for i, one in enumerate(self.fronts)}
        self.place |= {one.number: i for i, one in enumerate(self.decoders)}
        self.links = self._make_links()
        self.contents = {pool.block_tokens: Contents() for pool in fleet.pools}
        self.failures: dict[int, str] = {}
        self.events: list[tuple[float, int, Instance | Link, Served | None]] = []
        self.serial = 0
        self.ready: list[Instance] = []

    def run(self, progress: Progress | None) -> Outcome:
        requests, events = self.requests, self.events
        arrived, order = 0, self._in_order()
        next_s = requests[order[0]].arrival_s
        while next_s < inf or events:
            now_s = events[0][0] if events and events[0][0] < next_s else next_s
            while events and events[0][0] <= now_s:
                _, _, where, served = heappop(events)
                self._happen(now_s, where, served)
            while next_s <= now_s:
                self._arrive(now_s, order[arrived])
                arrived += 1
                if progress is not None and arrived % PROGRESS_REQUESTS == 0:
                    progress(arrived)
                next_s = requests[order[arrived]].arrival_s if arrived < len(order) else inf
            for instance in self.ready:
                if instance.end_s == inf:
                    if instance.start(now_s):
                        self._push(instance.end_s, instance)
                    if instance.reserved:
                        self._send(now_s, instance)
            self.ready.clear()
        return Outcome(self.fleet, requests, self.log, self.failures, self.instances, self.links)

    def _in_order(self) -> Sequence[int]:
        """Requests by the time of their arrival."""
        times_s = [request.arrival_s for request in self.requests]
        everyone = range(len(times_s))
        if all(earlier <= later for earlier, later in pairwise(times_s)):
            return everyone
        return sorted(everyone, key=times_s.__getitem__)

    def _happen(self, now_s: float, where: Instance | Link, served: Served | None) -> None:
        if isinstance(where, Instance):
            if served is not None:
                where.arrived.append(served)
                self._wake(now_s, where)
            elif where.end_s == now_s:  # else the run was cut short: it has ended
                self._end_run(now_s, where)
        elif where.next_end_s <= now_s:
            self._end_transfers(now_s, where)

    def _arrive(self, now_s: float, index: int) -> None:
        request = self.requests[index]
        contents = self._contents(request) if request.pieces else {}
        by_hits = contents and self.fleet.routing == "prefix_aware"
        hits = self._hits(now_s, request, contents) if by_hits else None
        place = self.front_router.choose(self.front_loads, hits)
        instance = self.fronts[place]
        pool = instance.pool
        hands_over = pool.role == "prefill" and request.output_tokens > 1
        served = Served(
            request.request_id,
            request.prompt_tokens,
            1 if hands_over else request.output_tokens,
            block_hashes=contents.get(pool.block_tokens, []) if pool.reuse else [],
            hold=hands_over,
            index=index,
        )
        line_was_empty = not instance.scheduler.waiting
        try:
            if hands_over:
                self._check_decodes(request)
            instance.scheduler.add(served)
        except (ValueError, QueueFull) as refusal:
            self.failures[index] = str(refusal)
            return
        self.front_loads[place] += 1
        instance.num_requests += 1
        if line_was_empty:  # else the next step waits for somebody before it
            self._wake(now_s, instance)

    def _hits(
        self, now_s: float, request: Request, contents: Mapping[int, list[Hashable]]
    ) -> list[int]:
        """Tokens of the prompt that the cache of each instance has."""
        most = request.prompt_tokens - 1  # the last token must run
        names = {size: found[: most // size] for size, found in contents.items()}
        hits = []
        for instance in self.fronts:
            instance.show(now_s)
            size = instance.pool.block_tokens
            hits.append(size * instance.scheduler.pool.count_matching(names[size]))
        return hits

    def _contents(self, request: Request) -> dict[int, list[Hashable]]:
        """Of the first full blocks of a prompt, by their size."""
        return {size: contents.of(request, size) for size, contents in self.contents.items()}

    def _check_decodes(self, request: Request) -> None:
        """A request must fit whole wherever it may be decoded."""
        whole = Served(request.request_id, request.prompt_tokens, request.output_tokens)
        for instance in self.decoders:
            check_sequence(whole, instance.scheduler.pool, instance.pool.settings)

    def _end_run(self, now_s: float, instance: Instance) -> None:
        ended = instance.finish(now_s)
        if ended:
            loads = self.decode_loads if instance.pool.role == "decode" else self.front_loads
            loads[self.place[instance.number]] -= len(ended)
        for served in ended:
            if served.hold:
                self._offer(now_s, instance, served)
        self.ready.append(instance)

    def _offer(self, now_s: float, instance: Instance, source: Served) -> None:
        """A prompt's cache is complete: it stands in line for blocks where it will be decoded."""
        place = self.decode_router.choose(self.decode_loads)
        self.decode_loads[place] += 1
        self.decoders[place].num_requests += 1
        request, taker = self.requests[source.index], self.decoders[place]
        served = Served(
            request.request_id,
            request.prompt_tokens,
            request.output_tokens,
            index=source.index,
            source=source,
            sender=instance.number,
            taker=place,
        )
        taker.offered.append(served)
        if len(taker.offered) == 1:  # else somebody before it waits for the end of another
            self._wake(now_s, taker)

    def _send(self, now_s: float, taker: Instance) -> None:
        """Caches whose blocks are there begin to travel."""
        for served in taker.reserved:
            link = self.links[0 if self.fleet.transfer.shared else self.place[served.sender]]
            link.send(now_s, served, taker.prices.kv_bytes(served.prompt_tokens))
            self._push(link.next_end_s, link)
        taker.reserved.clear()

    def _end_transfers(self, now_s: float, link: Link) -> None:
        for served in link.arrived(now_s):
            sender = self.instances[served.sender]
            assert served.source is not None
            sender.scheduler.release(served.source)
            served.source = None
            self._wake(now_s, sender)
            there_s = now_s + self.fleet.transfer.latency_s
            self._push(there_s, self.decoders[served.taker], served)
        if link.next_end_s < inf:
            self._push(link.next_end_s, link)

    def _wake(self, now_s: float, instance: Instance) -> None:
        if instance.end_s == inf:
            self.ready.append(instance)
        elif instance.interrupt(now_s):
            self._push(instance.end_s, instance)

    def _make_links(self) -> list[Link]:
        bandwidth = self.fleet.transfer.bandwidth_bytes_per_s
        number = 1 if self.fleet.transfer.shared else len(self.fronts)
        return [Link(bandwidth) for _ in range(number)]

    def _push(self, time_s: float, where: Instance | Link, served: Served | None = None) -> None:
        self.serial += 1
        heappush(self.events, (time_s, self.serial, where, served))
