"""Starting: from the options of `serve` to a server that runs, and its exit code."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import uvloop

from prefill_decode import hf_config
from prefill_decode.endpoint.doors import Limits, is_loopback
from prefill_decode.endpoint.running import bind, run, url_of
from prefill_decode.endpoint.server import Served, create_app
from prefill_decode.endpoint.server_metrics import ServerMetrics
from prefill_decode.endpoint.service import Service
from prefill_decode.endpoint.tokenizer import Tokenizer, find_tokenizer
from prefill_decode.engine.answering import Answering
from prefill_decode.engine.checkpoint import (
    has_weights,
    read_checkpoint,
    read_stored_model,
    stored_dtype,
)
from prefill_decode.engine.linear import copies_of_weights
from prefill_decode.engine.serving import (
    SHARE_OF_MEMORY,
    ServingEngine,
    build_serving_engine,
)
from prefill_decode.engine.step_runner import choose_model
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.measure import describe_machine
from prefill_decode.measure.machine import Machine
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import Policy, SchedulerSettings
from prefill_decode.units import GB, format_bytes

MOST_SEQUENCE_TOKENS = 16_384  # where the model itself sets no lower limit
TURN_S = 20e-6


@dataclass(frozen=True)
class ServeOptions:
    """The options of `serve`, as its help describes them."""

    model: str = "auto"
    dtype: str | None = None
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    memory_gb: float | None = None
    num_blocks: int | None = None
    block_tokens: int = 32
    policy: Policy = "chunked"
    most_tokens_per_step: int = 512
    most_sequences: int = 64
    most_waiting: int = 512
    reuse: bool = True
    api_key: str | None = None
    grace_s: float = 30.0
    seed: int = 0
    processes: int = 1  # that hold weights and a cache each


@dataclass(frozen=True)
class Model:
    """A model to be served: its shape, its words, and where its weights are."""

    spec: ModelSpec
    tokenizer: Tokenizer
    folder: Path | None  # of its weights; None: they are random, and stored nowhere
    config_tokens: int | None  # the most of a sequence, as its config has it

    @property
    def most_tokens(self) -> int:
        """Of a sequence."""
        tokens = min(MOST_SEQUENCE_TOKENS, self.config_tokens or MOST_SEQUENCE_TOKENS)
        if self.spec.positions == "learned":
            tokens = min(tokens, self.spec.vectors.position_rows)
        return tokens


@dataclass(frozen=True)
class Plan:
    """What to serve with, all of it decided."""

    options: ServeOptions
    model: Model
    device: str
    num_blocks: int  # of each process
    settings: SchedulerSettings
    complain: Callable[[str], None]


EngineOf = Callable[[Plan], AbstractContextManager[Answering]]


@contextmanager
def engine_here(plan: Plan) -> Iterator[Answering]:
    """One engine in this process."""
    weights = read_weights(plan.options, plan.model, plan.device)
    yield build_engine(plan, weights)


@contextmanager
def short_turns() -> Iterator[None]:
    """The engine's thread waits for the interpreter no longer than `TURN_S` after each of its
    operations, while the event loop works; by Python's own measure it would be 5 ms."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def start(
    options: ServeOptions,
    say: Callable[[str], None],
    complain: Callable[[str], None],
    limits: Limits | None = None,
    engine_of: EngineOf = engine_here,
) -> int:
    """Serve until told to stop; the exit code. ValueError for options that cannot be.

    `say` hears one line when the server is ready, `complain` why it ended if it failed and what
    else goes wrong. `engine_of` makes what computes the answers, for as long as they are served."""
    _check_reach(options)
    settings = SchedulerSettings(
        options.policy,
        options.most_tokens_per_step,
        options.most_sequences,
        options.most_waiting,
    )
    with bind(options.host, options.port) as bound:
        machine = describe_machine(options.device)
        model = find_model(options, machine)
        num_blocks = count_blocks(options, model.spec, machine)
        plan = Plan(options, model, machine.device, num_blocks, settings, complain)
        name = options.served_model_name or model.spec.name
        ready = f"prefill-decode serves {name} at {url_of(bound)}/v1: {_in_words(plan)}"
        with engine_of(plan) as engine:
            service = Service(engine, ServerMetrics())
            dice = Random(options.seed)
            served = Served(service, model.tokenizer, name, limits or Limits(), dice)
            allowed_host = options.host if is_loopback(options.host) else None
            app = create_app(served, options.api_key, allowed_host)
            running = run(app, service, bound, served.limits, options.grace_s, lambda: say(ready))
            with short_turns():
                code = uvloop.run(running)
    if service.failure is not None:
        complain(f"the engine failed in a step, and the server has stopped: {service.failure!r}")
    return code


def _in_words(plan: Plan) -> str:
    tokens = plan.num_blocks * plan.options.block_tokens
    cache = format_bytes(plan.model.spec.kv_bytes_kept_by_engine(tokens))
    many = plan.options.processes
    return (
        f"{'random weights, ' if plan.model.folder is None else ''}policy {plan.options.policy}, "
        f"KV cache {cache}, {plan.num_blocks} blocks of {plan.options.block_tokens} tokens"
        + (f", in each of {many} workers" if many > 1 else "")
    )


def _check_reach(options: ServeOptions) -> None:
    if not is_loopback(options.host) and options.api_key is None:
        raise ValueError(
            "a server that other machines can reach needs a key: set PREFILL_DECODE_API_KEY, or "
            f"leave --host out; got --host {options.host}"
        )


def find_model(options: ServeOptions, machine: Machine) -> Model:
    """The model that is asked for: weights from a folder that has any, random ones otherwise."""
    folder = Path(options.model) if Path(options.model).is_dir() else None
    most = hf_config.most_positions(Path(options.model))
    if folder is not None and has_weights(folder):
        spec = read_stored_model(folder, stored_dtype(machine.device, options.dtype))
        return Model(spec, find_tokenizer(folder, spec.vocab_size), folder, most)
    spec = _shape(options, machine)
    return Model(spec, find_tokenizer(folder, spec.vocab_size), None, most)


def read_weights(options: ServeOptions, model: Model, device: str) -> Weights:
    if model.folder is None:
        return random_weights(model.spec, device, options.seed)
    return read_checkpoint(model.folder, device, options.dtype)[1]


def _shape(options: ServeOptions, machine: Machine) -> ModelSpec:
    name = options.model
    if name == "auto" or name in hf_config.names():
        spec = choose_model(name, machine.device, machine.cache_bytes, machine.memory_bytes)
        return spec if options.dtype is None else spec.with_dtype(options.dtype)
    dtype = options.dtype
    if dtype is None and machine.device == "cpu":
        dtype = "float32"
    return hf_config.find(name, dtype)


def count_blocks(options: ServeOptions, spec: ModelSpec, machine: Machine) -> int:
    """Blocks of the KV cache, of each process. ValueError if not one fits, or if they do not fit
    this machine."""
    block_bytes = spec.kv_bytes_kept_by_engine(options.block_tokens)
    weight_bytes = spec.weight_bytes * copies_of_weights(machine.device, spec.dtype)
    left_bytes = machine.memory_bytes / options.processes - weight_bytes
    if options.num_blocks is not None:
        room_bytes = float(options.num_blocks * block_bytes)
    elif options.memory_gb is not None:
        room_bytes = options.memory_gb * GB / options.processes
    else:
        room_bytes = SHARE_OF_MEMORY * left_bytes
    if room_bytes > max(left_bytes, 0.0):
        raise ValueError(
            f"the cache must fit beside the weights, into {format_bytes(max(0.0, left_bytes))}; "
            f"got {format_bytes(room_bytes)}: it takes less --memory-gb or --blocks"
        )
    if room_bytes < block_bytes:
        raise ValueError(
            f"the cache needs room for one block, {format_bytes(block_bytes)}; got "
            f"{format_bytes(max(0.0, room_bytes))}: it takes more --memory-gb"
        )
    return int(room_bytes // block_bytes)


def build_engine(plan: Plan, weights: Weights) -> ServingEngine:
    return build_serving_engine(
        plan.model.spec,
        plan.device,
        cache_tokens=plan.num_blocks * plan.options.block_tokens,
        block_tokens=plan.options.block_tokens,
        capacity_tokens=plan.model.most_tokens,
        settings=plan.settings,
        weights=weights,
        reuse=plan.options.reuse,
    )
