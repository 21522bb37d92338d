"""Worker: a process that computes for a coordinator, prefill or decode.

It dials its coordinator, says hello, and goes round: messages, what its threads have to say, a step
if there is one to run; else it waits for any of these. It ends when it is told to, by a message, by
SIGTERM or by the end of its standard input, and when its coordinator has gone.

    python -m prefill_decode.disaggregated.worker

reads its options from the first line of standard input, one JSON object: {"options": {...}, "key":
HEX or null}. The key stands there so that no list of processes shows it."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import torch
from pydantic import TypeAdapter, ValidationError

from prefill_decode import hf_config
from prefill_decode.disaggregated.decode_worker import DecodeWorker
from prefill_decode.disaggregated.duty import Duty
from prefill_decode.disaggregated.engine_memory import pool_of
from prefill_decode.disaggregated.mailbox import Mailbox, messages, say
from prefill_decode.disaggregated.messages import Hello, Message, Role, State, Stop
from prefill_decode.disaggregated.prefill_worker import PrefillWorker
from prefill_decode.engine.checkpoint import has_weights, read_checkpoint
from prefill_decode.engine.serving import ServingEngine, build_serving_engine
from prefill_decode.engine.slices import slice_of
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.kv_transfer import Channel, Lane, Pool, TransferError, dial
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import SchedulerSettings

STATE_S = 1.0  # between two words of a worker, whatever it does


@dataclass(frozen=True)
class WorkerOptions:
    role: Role
    name: str
    coordinator: str  # its address
    model: str  # a shipped name, a config.json, or a folder, whose weights are used if it has any
    num_blocks: int
    num_layers: int | None = None  # a slice of so many, with random weights; None: all of the model
    dtype: str | None = None  # None: float32
    seed: int = 0  # of random weights
    block_tokens: int = 32
    capacity_tokens: int | None = None  # of one sequence; None: what the cache holds
    most_tokens_per_step: int = 512
    most_sequences: int = 64
    reuse: bool = True
    threads: int | None = None  # of a step; None: as many as torch takes
    listen: str = "tcp:127.0.0.1:0"  # where a prefill worker's offers are read
    lane: Lane = "auto"  # by which a decode worker reads them; nixl: a prefill worker lends by it
    pace_bytes_per_s: float | None = None  # of a prefill worker's transfers, all together


OPTIONS = TypeAdapter(WorkerOptions)


def first_line(options: WorkerOptions, key: bytes | None) -> bytes:
    """What the process reads first of all."""
    read = {"options": asdict(options), "key": None if key is None else key.hex()}
    return json.dumps(read).encode() + b"\n"


def read_first_line(line: bytes) -> tuple[WorkerOptions, bytes | None]:
    """ValueError for what `first_line` does not write."""
    try:
        read = json.loads(line)
        key = read["key"]
        options = OPTIONS.validate_json(json.dumps(read["options"]), strict=True)
        return options, None if key is None else bytes.fromhex(key)
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"a worker's first line has its options and its key: {error}") from None


def run_worker(options: WorkerOptions, key: bytes | None, mailbox: Mailbox) -> None:
    """Work until told to stop. ValueError for options that cannot be, TransferError where the
    coordinator has gone."""
    _work(options, key, mailbox, _engine(options))


def _work(
    options: WorkerOptions, key: bytes | None, mailbox: Mailbox, engine: ServingEngine
) -> None:
    pool = pool_of(engine)
    incarnation = uuid4().hex
    with dial(options.coordinator, key) as channel:
        duty = _duty(options, key, engine, pool, mailbox, channel, incarnation)
        try:
            say(channel, _hello(options, engine, pool, duty, incarnation))
            heart = _Heart(channel, duty.state())
            try:
                _go_round(duty, channel, mailbox, heart)
            finally:
                heart.stop()
        finally:
            duty.close()


def find_model(options: WorkerOptions) -> tuple[ModelSpec, Weights]:
    """A folder's stored weights if it has any, else random ones. ValueError."""
    folder, sliced = Path(options.model), options.num_layers is not None
    if folder.is_dir() and has_weights(folder) and not sliced:
        return read_checkpoint(folder, "cpu", options.dtype)
    spec = hf_config.find(options.model, options.dtype or "float32")
    if options.num_layers is not None:
        spec = slice_of(spec, options.num_layers)
    return spec, random_weights(spec, "cpu", options.seed)


def _engine(options: WorkerOptions) -> ServingEngine:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    spec, weights = find_model(options)
    return build_serving_engine(
        spec,
        cache_tokens=options.num_blocks * options.block_tokens,
        block_tokens=options.block_tokens,
        capacity_tokens=options.capacity_tokens,
        settings=SchedulerSettings("chunked", options.most_tokens_per_step, options.most_sequences),
        weights=weights,
        reuse=options.reuse,
    )


def _duty(
    options: WorkerOptions,
    key: bytes | None,
    engine: ServingEngine,
    pool: Pool,
    mailbox: Mailbox,
    channel: Channel,
    incarnation: str,
) -> Duty:
    def tell(message: Message) -> None:
        say(channel, message)

    if options.role == "decode":
        return DecodeWorker(engine, pool, mailbox, tell, key, options.lane)
    return PrefillWorker(
        engine,
        pool,
        mailbox,
        tell,
        options.listen,
        incarnation,
        key,
        options.pace_bytes_per_s,
        options.lane == "nixl",
    )


def _hello(
    options: WorkerOptions, engine: ServingEngine, pool: Pool, duty: Duty, incarnation: str
) -> Hello:
    return Hello(
        role=options.role,
        name=options.name,
        incarnation=incarnation,
        pid=os.getpid(),
        layout=pool.layout,
        num_blocks=pool.num_blocks,
        capacity_tokens=engine.capacity_tokens,
        address=duty.address,
    )


class _Heart:
    """Says the last state once more every second while a step runs, from a thread of its own: a
    step may take longer than a coordinator waits for a word. All else that takes long is a fault,
    and is not spoken for."""

    def __init__(self, channel: Channel, state: State) -> None:
        self.state, self.in_step = state, False
        self._channel = channel
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        with contextlib.suppress(TransferError, OSError):  # the loop will find out
            while not self._stopped.wait(STATE_S):
                if self.in_step:
                    say(self._channel, self.state)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _go_round(duty: Duty, channel: Channel, mailbox: Mailbox, heart: _Heart) -> None:
    said_s = 0.0
    while not mailbox.stopped:
        for event in mailbox.events():
            event()
        for message in messages(channel):
            if isinstance(message, Stop):
                return
            duty.obey(message)
        due_s = duty.expire(time.monotonic())
        heart.in_step = True
        ran = duty.step()
        heart.in_step = False
        now_s, state = time.monotonic(), duty.state()
        if ran or state != heart.state or now_s >= said_s + STATE_S:
            say(channel, state)
            heart.state, said_s = state, now_s
        if not ran:
            wake_s = min(said_s + STATE_S, due_s or float("inf"))
            mailbox.wait(channel, max(0.0, wake_s - now_s))


def main() -> int:
    """The exit code: 0 when told to stop, 1 for all else, with one line on standard error."""
    mailbox = Mailbox()
    signal.signal(signal.SIGTERM, lambda *_: mailbox.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides
    try:
        with open(0, "rb", buffering=0, closefd=False) as given:
            options, key = read_first_line(given.readline())
        threading.Thread(target=_stop_with_input, args=(mailbox,), daemon=True).start()
        engine = _engine(options)
    except ValueError as error:
        return _end(str(error))
    try:
        _work(options, key, mailbox, engine)
    except (OSError, TransferError) as error:
        return _end(str(error))
    return 0


def _stop_with_input(mailbox: Mailbox) -> None:
    while os.read(0, 2**12):
        pass
    mailbox.stop()


def _end(words: str) -> int:
    print(f"the worker ends: {words}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
