"""Workers without a model, which say what real ones say: a token is a mix of prompt, answer and
place, so that what a client receives can be checked without asking anybody.

Leases and blocks are real counts. A cache is what it was computed from: whoever goes on from it
checks that it is the one that the answer so far needs."""

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from prefill_decode.disaggregated.messages import (
    Asked,
    Cancel,
    Continue,
    Ended,
    Failed,
    Hello,
    Offered,
    Prefill,
    Prefilled,
    Pulled,
    Start,
    State,
    Stop,
    Token,
    Tokens,
    Withdraw,
)
from prefill_decode.kv_transfer import Layout, Offer

LAYOUT = Layout("tiny", "w", "float32", 2, 1, 8, 4, 128)
STARTS = count()


def token_at(prompt_ids, answer, place):
    mixed = blake2b(repr((tuple(prompt_ids), answer, place)).encode(), digest_size=2)
    return int.from_bytes(mixed.digest())


def told(asked, place):
    token_id = token_at(asked.prompt_ids, asked.answer, place)
    reason = "length" if place + 1 == asked.most_output_tokens else None
    reason = "stop" if token_id in asked.stop_ids else reason
    return Token(asked.request_id, token_id, reason, None)


def check_known(asked):
    places = range(len(asked.known_ids))
    wanted = [token_at(asked.prompt_ids, asked.answer, place) for place in places]
    assert list(asked.known_ids) == wanted, "an answer goes on from tokens that are not its own"


@dataclass(eq=False)
class Scripted:
    """`sent` is what the coordinator has still to hear; `act` does the next thing that is due."""

    name: str
    leases: dict = field(default_factory=dict)  # of all prefill workers: id, (owner, offer)
    num_blocks: int = 16
    capacity_tokens: int = 60
    layout: Layout = LAYOUT
    sent: deque = field(default_factory=deque)
    tries: dict = field(default_factory=dict)
    steps: int = 0
    alive: bool = True

    def __post_init__(self):
        self.incarnation = f"{self.name} {next(STARTS)}"

    @property
    def role(self):
        return "prefill" if isinstance(self, ScriptedPrefill) else "decode"

    def hello(self):
        address = "unix:/nowhere" if self.role == "prefill" else None
        return Hello(self.role, self.name, self.incarnation, 1, self.layout, self.num_blocks,
                     self.capacity_tokens, address)  # fmt: skip

    def say(self, *messages):
        self.sent.extend(messages)
        self.sent.append(self.state())

    def state(self):
        free = self.num_blocks - self.held_blocks()
        return State(len(self.tries), 0, free, self.num_blocks, self.steps, 0, 0, 0, 0)

    def blocks(self, asked, more=1):
        return -(-(len(asked.prompt_ids) + len(asked.known_ids) + more) // LAYOUT.block_tokens)


class ScriptedPrefill(Scripted):
    """Of each try: `asked`, and whether it is offered."""

    def held_blocks(self):
        mine = [offer for owner, offer in self.leases.values() if owner is self]
        return sum(len(offer.blocks) for offer in mine)

    def receive(self, message):
        match message:
            case Prefill():
                check_known(message.asked)
                assert message.asked.request_id == message.transfer_id
                assert message.asked.request_id not in self.tries
                self.tries[message.transfer_id] = [message.asked, False]
            case Cancel():
                self.tries.pop(message.request_id, None)
            case Withdraw():
                self.end(message.transfer_id, "withdrawn")
            case Stop():
                self.alive = False
            case _:
                raise AssertionError(f"this is no message to a prefill worker: {message}")

    def end(self, transfer_id, how):
        owner, _ = self.leases.get(transfer_id, (None, None))
        if owner is self:
            del self.leases[transfer_id]
            self.say(Ended(transfer_id, how))

    def act(self, which=0):
        """Offer one that is not offered; else finish one."""
        if not self.tries:
            return False
        try_id = list(self.tries)[which % len(self.tries)]
        asked, offered = self.tries[try_id]
        if not offered:
            blocks = tuple(range(self.blocks(asked, 0)))
            offer = Offer(try_id, "unix:/nowhere", self.incarnation, blocks, blocks)
            self.leases[try_id] = (self, offer)
            self.tries[try_id][1] = True
            self.say(Offered(try_id, offer))
        else:
            del self.tries[try_id]
            self.steps += 1
            token = told(asked, len(asked.known_ids))
            self.say(Prefilled(token, 0))
            if token.finish_reason:
                self.end(try_id, "withdrawn")
        return True

    def fail(self, which, again):
        if self.tries:
            try_id = list(self.tries)[which % len(self.tries)]
            del self.tries[try_id]
            self.say(Failed(try_id, "it was told to", again))
            self.end(try_id, "withdrawn")


@dataclass(eq=False)
class Going:
    asked: Asked
    offer: Offer
    token_id: int | None = None
    pulled: bool = False
    place: int = 0


class ScriptedDecode(Scripted):
    def held_blocks(self):
        return sum(self.blocks(going.asked, going.place) for going in self.tries.values()
                   if going.pulled)  # fmt: skip

    def receive(self, message):
        match message:
            case Continue():
                check_known(message.asked)
                assert message.asked.request_id not in self.tries
                self.tries[message.asked.request_id] = Going(message.asked, message.offer)
            case Start():
                if going := self.tries.get(message.request_id):
                    going.token_id = message.token_id
            case Cancel():
                if self.tries.pop(message.request_id, None):
                    self.say()
            case Stop():
                self.alive = False
            case _:
                raise AssertionError(f"this is no message to a decode worker: {message}")

    def act(self, which=0):
        """Read a cache, else decode: whatever this one can do next."""
        can = [going for going in self.tries.values() if self._can(going)]
        if not can:
            return False
        going = can[which % len(can)]
        asked, known = going.asked, len(going.asked.known_ids)
        if not going.pulled:
            self._pull(going)
            return True
        wanted = token_at(asked.prompt_ids, asked.answer, known)
        assert going.token_id == wanted, "the token to go on with is another answer's"
        going.place += 1
        self.steps += 1
        token = told(asked, known + going.place)
        if token.finish_reason:
            del self.tries[asked.request_id]
        self.say(Tokens((token,)))
        return True

    def _can(self, going):
        if going.pulled:
            return going.token_id is not None
        try_id = going.asked.request_id
        owner, _ = self.leases.get(try_id, (None, None))
        return owner is None or not owner.alive or try_id not in owner.tries  # it is computed

    def _pull(self, going):
        try_id = going.asked.request_id
        owner, _ = self.leases.get(try_id, (None, None))
        if owner is None or not owner.alive:
            del self.tries[try_id]
            self.say(Failed(try_id, "the cache is gone", again=True))
            return
        going.pulled = True
        owner.end(try_id, "released")
        self.say(Pulled(try_id, try_id, 256 * len(going.offer.blocks), 0.25, "unix"))

    def fail(self, which, again):
        if self.tries:
            try_id = list(self.tries)[which % len(self.tries)]
            del self.tries[try_id]
            self.say(Failed(try_id, "it was told to", again))
