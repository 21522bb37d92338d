"""Instance: one scheduler whose steps take the time that prices say.

The scheduler is the engine's. It is asked for runs of steps over blocks that are only counted (or,
to check that, for single steps over the engine's blocks, priced by the roofline itself), and a run
is cut when something comes that the next step may hold.
"""

from collections import deque
from math import ceil, inf, nan, sqrt

from prefill_decode.scheduling import (
    BlockPool,
    CountedPool,
    OutOfBlocks,
    QueueFull,
    ScheduledRun,
    Scheduler,
)
from prefill_decode.simulator.fleet import Pool
from prefill_decode.simulator.prices import Prices
from prefill_decode.simulator.sequences import NO_SEGMENT, Served
from prefill_decode.simulator.token_log import TokenLog

MOST_STEPS = 2**40


class Instance:
    def __init__(
        self, number: int, pool: Pool, prices: Prices, log: TokenLog, step_by_step: bool
    ) -> None:
        self.number, self.pool, self.prices = number, pool, prices
        blocks = BlockPool if step_by_step else CountedPool
        self.scheduler = Scheduler(
            blocks(pool.num_blocks, pool.block_tokens, pool.reuse), pool.settings
        )
        self.offered: deque[Served] = deque()  # whose caches wait elsewhere for room here
        self.reserved: list[Served] = []  # have just got it: their caches may travel
        self.arrived: list[Served] = []  # their caches have: they run from the next step on
        self.turn = 0
        self.num_requests = self.num_steps = 0
        self.busy_s = 0.0
        self.end_s = inf  # of the run under way; without one it is idle
        self._log, self._timeline = log, log.timelines[number]
        self._step_by_step = step_by_step
        self._run: ScheduledRun | None = None
        self._idle_since_s = -inf
        self._start_s = self._first_s = self._growth_s = 0.0
        self._passed = self._steps = 0
        self._keeps_contents: bool | None = None  # the run; None until somebody asks

    def start(self, now_s: float) -> bool:
        """Begin what runs next. False if nothing does."""
        assert self._run is None
        if self.arrived or self.offered:
            self._take_in()
        run = self._single_step() if self._step_by_step else self.scheduler.next_run(MOST_STEPS)
        if run is None:
            for sequence in self.scheduler.waiting:  # who lost blocks, and nobody runs
                self._end_segment(sequence)
            return False
        for sequence in run.step.preempted:
            self._end_segment(sequence)
        if run.step.chunks:
            self._growth_s = 0.0
            self._first_s = self._step_s(run)
        else:
            self._first_s, self._growth_s = self.prices.decodes(run.decodes, run.context_tokens)
        wake_s = self.pool.calibration.waking_s(now_s - self._idle_since_s)
        self._run, self._start_s = run, now_s + wake_s
        self._passed, self._steps, self._keeps_contents = 0, run.steps, None
        self.end_s = self._start_s + self._taken_s(run.steps)
        return True

    def finish(self, now_s: float) -> list[Served]:
        """The run under way is over. Who ended."""
        run = self._run
        assert run is not None
        by_sequence = run.by_sequence and any(
            sequence.since_turn != NO_SEGMENT  # type: ignore[attr-defined]
            for sequence, _ in run.step.chunks
        )
        if run.decodes or by_sequence:
            self._timeline.add(self.turn, self._start_s, self._first_s, self._growth_s)
            self.turn += self._steps
        self.num_steps += self._steps
        self.busy_s += now_s - self._start_s
        ended = self.scheduler.complete_run(run, self._steps - self._passed)
        for sequence, chunk in run.step.chunks:
            assert isinstance(sequence, Served)
            if sequence.since_turn == NO_SEGMENT:
                if chunk.samples_token:
                    sequence.since_turn, sequence.first_s = self.turn, now_s
                elif sequence.tokens_to_run == 1:
                    sequence.since_turn = self.turn
        for sequence in ended:
            self._end_segment(sequence)
        self._run, self.end_s, self._idle_since_s = None, inf, now_s
        return ended  # type: ignore[return-value]

    def interrupt(self, now_s: float) -> bool:
        """End the run under way with the step that is running. False if it ends no earlier."""
        run = self._run
        if run is None or self._steps == 1:
            return False
        steps = max(self._passed + 1, self._steps_until(now_s))
        if steps >= self._steps:
            return False
        self._steps = steps
        self.end_s = self._start_s + self._taken_s(steps)
        return True

    def show(self, now_s: float) -> None:
        """Let the block pool stand as it stands in the step that is running."""
        run = self._run
        if run is None:
            return
        if self._keeps_contents is None:
            self._keeps_contents = self.scheduler.keeps_contents(run)
        if self._keeps_contents or run.steps == 1:
            return
        steps = self._steps_until(now_s)
        if self._start_s + self._taken_s(steps) > now_s:
            steps -= 1
        steps = min(steps, self._steps - 1)
        if steps > self._passed:
            self.scheduler.pass_steps(run, steps - self._passed)
            self._passed = steps

    def _take_in(self) -> None:
        """What a decode worker does before a step: whose cache has come decodes, and who waits
        gets blocks, in their order and as far as there are any."""
        for served in self.arrived:
            self.scheduler.start(served)
            served.since_turn, served.first_s = self.turn, nan
        self.arrived.clear()
        while self.offered:
            try:
                self.scheduler.reserve(self.offered[0])
            except (OutOfBlocks, QueueFull):
                return
            self.reserved.append(self.offered.popleft())

    def _single_step(self) -> ScheduledRun | None:
        step = self.scheduler.next_step()
        return None if step is None else ScheduledRun(step, by_sequence=True)

    def _step_s(self, run: ScheduledRun) -> float:
        if self._step_by_step:
            return self.prices.step_s_by_roofline(chunk for _, chunk in run.step.chunks)
        return self.prices.step_s(run.step.chunks, run.decodes, run.context_tokens)

    def _taken_s(self, steps: int) -> float:
        return steps * self._first_s + self._growth_s * (steps * (steps - 1) / 2)

    def _steps_until(self, now_s: float) -> int:
        """The fewest steps that are not over before `now_s`."""
        target_s, first_s, growth_s = now_s - self._start_s, self._first_s, self._growth_s
        if target_s <= 0:  # it is still waking
            return 0
        if growth_s > 0:
            slope_s = first_s - growth_s / 2
            steps = ceil((sqrt(slope_s * slope_s + 2 * growth_s * target_s) - slope_s) / growth_s)
        else:
            steps = ceil(target_s / first_s) if first_s else 0
        start_s = self._start_s
        while steps > 0 and start_s + self._taken_s(steps - 1) >= now_s:
            steps -= 1
        while start_s + self._taken_s(steps) < now_s:
            steps += 1
        return steps

    def _end_segment(self, sequence: object) -> None:
        assert isinstance(sequence, Served)
        if sequence.since_turn != NO_SEGMENT:
            self._log.end_segment(
                sequence.index, self.number, sequence.first_s, sequence.since_turn, self.turn
            )
            sequence.since_turn, sequence.first_s = NO_SEGMENT, nan
