"""ScheduleRunner: whole schedules ready to be timed, each a list of steps run one after another.

A step that several schedules share, or that one repeats, is prepared once. The token ids are on
the device and the plans are made, so a timed schedule is its forward passes and nothing else.

Ignores: which slot a sequence holds. The chunks of a step take the first slots, in order; reading
         another slot of the same noise takes as long."""

from collections.abc import Callable, Mapping, Sequence

from prefill_decode.engine.step_runner import StepRunner
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk


class ScheduleRunner:
    """One engine with room for all the given schedules, and each of them ready to run."""

    def __init__(
        self,
        model: ModelSpec,
        schedules: Mapping[str, Sequence[Sequence[Chunk]]],
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        if not schedules or not all(schedules.values()):
            raise ValueError("there is nothing to run: every schedule needs at least one step")
        distinct = {tuple(step) for schedule in schedules.values() for step in schedule}
        names = {step: f"step {index}" for index, step in enumerate(sorted(distinct, key=repr))}
        chunks = {name: step for step, name in names.items()}
        self.runner = StepRunner(model, chunks, device, seed)
        self.schedules = {
            name: _in_turn([self.runner.steps[names[tuple(step)]] for step in schedule])
            for name, schedule in schedules.items()
        }


def _in_turn(steps: Sequence[Callable[[], object]]) -> Callable[[], list[object]]:
    return lambda: [step() for step in steps]
