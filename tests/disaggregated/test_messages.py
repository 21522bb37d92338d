"""Messages survive the wire, and what is no message is refused in words."""

import json
from math import inf

import pytest

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
    decode,
    encode,
)
from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Layout, Offer

ASKED = Asked("r/0", (1, 2, 3), 5, Sampling(0.7, 0.9, 2**63, 2), frozenset({7, 3}), 1, (4,))
OFFER = Offer("t", "unix:/tmp/x", "i1", (3, 9), (1, 2))
LAYOUT = Layout("tiny", "w", "float32", 2, 1, 8, 4, 128)
TOKEN = Token("r/0", 5, "stop", -inf, ((5, -inf), (6, -1.5)))


@pytest.mark.parametrize(
    "message",
    [
        Prefill(ASKED, "t", 2.5),
        Continue(ASKED, OFFER, 3.0),
        Start("r/0", 9),
        Cancel("r/0"),
        Withdraw("t"),
        Stop(),
        Hello("prefill", "p0", "i1", 12, LAYOUT, 64, 256, "tcp:127.0.0.1:1"),
        Offered("r/0", OFFER),
        Prefilled(TOKEN, 32),
        Ended("t", "expired"),
        Pulled("r/0", "t", 4096, 0.25, "unix"),
        Tokens((TOKEN, Token("b", 1, None, None))),
        Failed("r/0", "its blocks are gone", again=True),
        State(1, 2, 3, 4, 5, 6, 7, 8, 9),
    ],
    ids=lambda message: message.type,
)
def test_every_message_comes_back_as_it_was_sent(message):
    assert decode(encode(message)) == message


def changed(message, **fields):
    return json.dumps(json.loads(encode(message)) | fields).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no message"),
        (b"[]", "no message"),
        (b'{"type": "nothing"}', "no message"),
        (changed(Cancel("r"), request_id=7), "request_id"),
        (changed(Ended("t", "expired"), how="lost"), "how"),
        (changed(Offered("r", OFFER), offer={}), "offer"),
        (changed(Offered("r", OFFER), offer={**OFFER.to_json(), "blocks": [1]}), "generation"),
        (changed(Prefill(ASKED, "t", 1.0), deadline_s="soon"), "deadline_s"),
        (encode(Prefill(ASKED, "t", 1.0)).replace(b"0.9", b"1.9"), "top_p"),
        (b"\xff" * 9, "no message"),
        (b"[" * 100_000, "no message"),
    ],
)
def test_what_is_no_message_is_refused_in_words(data, words):
    with pytest.raises(ValueError, match=words):
        decode(data)
