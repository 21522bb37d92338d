"""A coordinator that is a test: it speaks messages to workers in threads or in processes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefill_decode.disaggregated.mailbox import Mailbox
from prefill_decode.disaggregated.messages import (
    Asked,
    Cancel,
    Continue,
    Failed,
    Hello,
    Message,
    Offered,
    Prefill,
    Prefilled,
    Start,
    State,
    Tokens,
    decode,
    encode,
)
from prefill_decode.disaggregated.worker import WorkerOptions, first_line, run_worker
from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Channel, Listener, TransferError
from tests.conftest import ROOT, TINY

WORD_S = 20.0  # for the one worker's word of an end to come after the other's of its failure
LONGEST_S = 60.0
LONGEST_START_S = 240.0  # of a process: torch, and which products are the fastest
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": TINY.num_layers,
    "hidden_size": TINY.hidden_size,
    "intermediate_size": TINY.intermediate_size,
    "num_attention_heads": TINY.num_heads,
    "num_key_value_heads": TINY.num_kv_heads,
    "head_dim": TINY.head_dim,
    "vocab_size": TINY.vocab_size,
    "tie_word_embeddings": False,
    "torch_dtype": "float64",
}


def tiny_config(folder: Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


class Peer:
    """One worker, as its coordinator knows it. What was heard and not asked for yet waits."""

    def __init__(self, channel: Channel, stop: Any = None) -> None:
        self.channel = channel
        self.stop = stop
        self.waiting: list[Message] = []
        self.hello: Hello = self.hear(Hello)

    def say(self, message: Message) -> None:
        self.channel.send(encode(message))

    def listen(self, timeout_s: float = 0.0) -> None:
        data = self.channel.receive(timeout_s)
        while data is not None:
            self.waiting.append(decode(data))
            data = self.channel.receive(0)

    def hear(self, kind: type, **fields: Any) -> Any:
        """The first message of this kind with these fields, those before it left waiting."""
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            for message in self.waiting:
                if isinstance(message, kind) and all(
                    getattr(message, name) == value for name, value in fields.items()
                ):
                    self.waiting.remove(message)
                    return message
            self.listen(0.1)
        raise AssertionError(f"{kind.__name__} {fields} did not come; {self.waiting[-5:]} did")

    def take(self, *kinds: type) -> list[Any]:
        """All that wait now."""
        self.listen()
        taken = [message for message in self.waiting if isinstance(message, kinds)]
        self.waiting = [message for message in self.waiting if not isinstance(message, kinds)]
        return taken

    def is_settled(self) -> bool:
        """Whether all blocks are free and nothing is under way; waits for it."""
        self.take(State)
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            state = self.hear(State)
            busy = state.num_running + state.num_waiting + state.leases
            if not busy and state.free_blocks == state.num_blocks:
                return True
        return False


class Script:
    """Where workers dial in. They end with it."""

    def __init__(self, folder: Path, kind: str = "unix", key: bytes | None = None) -> None:
        self.folder, self.kind, self.key = folder, kind, key
        self.model = tiny_config(folder)
        self.listener = Listener(self.address("coordinator"), key)
        self.peers: list[Peer] = []

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}" if self.kind == "unix" else "tcp:127.0.0.1:0"

    def options(self, role: str, **changes: Any) -> WorkerOptions:
        chosen: dict[str, Any] = {
            "role": role,
            "name": role,
            "coordinator": self.listener.address,
            "model": self.model,
            "dtype": "float64",
            "num_blocks": 24,
            "block_tokens": 4,
            "most_tokens_per_step": 16,
            "most_sequences": 6,
            "listen": self.address(f"{role}{len(self.peers)}"),
        }
        return WorkerOptions(**{**chosen, **changes})

    def thread(self, role: str, **changes: Any) -> Peer:
        """A worker in a thread of this process."""
        mailbox, options = Mailbox(), self.options(role, **changes)

        def work() -> None:
            with suppress(TransferError):  # the script hung up
                run_worker(options, self.key, mailbox)

        thread = threading.Thread(target=work, name=role)
        thread.start()

        def stop() -> None:
            mailbox.stop()
            thread.join(LONGEST_S)
            assert not thread.is_alive()
            mailbox.close()

        return self._joined(stop)

    def process(self, role: str, **changes: Any) -> tuple[Peer, subprocess.Popen[bytes]]:
        """A worker in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "prefill_decode.disaggregated.worker"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
        )
        assert process.stdin is not None
        process.stdin.write(first_line(self.options(role, threads=1, **changes), self.key))
        process.stdin.flush()

        def stop() -> None:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stderr.close()

        try:
            return self._joined(stop), process
        except BaseException:
            stop()
            print(process.stderr.read() if process.stderr and not process.stderr.closed else "")
            raise

    def _joined(self, stop: Any) -> Peer:
        channel = self.listener.accept(LONGEST_START_S)
        assert channel is not None, "the worker did not come"
        peer = Peer(channel, stop)
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        for peer in self.peers:
            peer.stop()
            peer.channel.close()
        self.listener.close()


@contextmanager
def script(folder: Path, kind: str = "unix", key: bytes | None = None) -> Iterator[Script]:
    made = Script(folder, kind, key)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Request:
    asked: Asked
    transfer_id: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    reused_tokens: int = 0


def request(name: str, prompt: Sequence[int], tokens: int, **options: Any) -> Request:
    sampling = options.pop("sampling", Sampling())
    asked = Asked(name, tuple(prompt), tokens, sampling, **options)
    return Request(asked, f"{name}/0", list(asked.known_ids))


def run(prefill: Peer, decode: Peer, requests: Sequence[Request]) -> None:
    """What a coordinator does when nothing goes wrong, for all of them at once."""
    by_id = {request.asked.request_id: request for request in requests}
    for each in requests:
        prefill.say(Prefill(each.asked, each.transfer_id, LONGEST_S))
    until = time.monotonic() + LONGEST_S
    failures: dict[float, Failed] = {}  # by when they were heard of
    while not all(each.finish_reason for each in requests):
        assert time.monotonic() < until, (prefill.waiting[-3:], decode.waiting[-3:])
        for message in (*prefill.take(Offered, Prefilled), *decode.take(Tokens)):
            obeyed(by_id, decode, message)
        for message in (*prefill.take(Failed), *decode.take(Failed)):
            failures[time.monotonic()] = message
        for heard_s, message in failures.items():  # of what ended with its prefill, and no other
            known = by_id[message.request_id].finish_reason
            assert known or time.monotonic() < heard_s + WORD_S, message
        prefill.listen(0.002)


def obeyed(by_id: dict[str, Request], decode: Peer, message: Any) -> None:
    if isinstance(message, Offered):
        if message.request_id in by_id:  # else it is over
            asked = by_id[message.request_id].asked
            decode.say(Continue(asked, message.offer, LONGEST_S))
        return
    tokens = message.tokens if isinstance(message, Tokens) else (message.token,)
    for token in tokens:
        if token.request_id not in by_id:
            continue
        each = by_id[token.request_id]
        each.token_ids.append(token.token_id)
        each.finish_reason = token.finish_reason
        if isinstance(message, Prefilled):
            each.reused_tokens = message.reused_tokens
            if token.finish_reason is None:
                decode.say(Start(token.request_id, token.token_id))
            else:
                decode.say(Cancel(token.request_id))
