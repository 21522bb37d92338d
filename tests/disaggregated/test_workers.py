"""Workers, prefill and decode: the same tokens as one engine, and every block back, whatever ends a
request and whenever."""

import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from prefill_decode import hf_config
from prefill_decode.disaggregated.messages import (
    Cancel,
    Continue,
    Ended,
    Failed,
    Offered,
    Prefill,
    Prefilled,
    Pulled,
    Start,
    State,
    Stop,
    Tokens,
    Withdraw,
)
from prefill_decode.disaggregated.prefill_worker import PrefillWorker
from prefill_decode.disaggregated.worker import first_line, read_first_line
from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Exporter, Offer
from tests.conftest import TINY
from tests.disaggregated.scripted import (
    LONGEST_S,
    LONGEST_START_S,
    Request,
    obeyed,
    request,
    run,
    script,
    tiny_config,
)
from tests.engine.test_serving import alone, prompt_of

SLOW = 2_000.0  # bytes a second: a prompt of 24 tokens takes 6 s
LONG = prompt_of(24, 7)


@pytest.fixture
def workers(tmp_path):
    """A prefill and a decode worker in threads of this process."""
    with script(tmp_path) as made:
        yield made, made.thread("prefill"), made.thread("decode")


def expected(each: Request) -> list[int]:
    asked = each.asked
    ids = alone(asked.prompt_ids, asked.most_output_tokens, asked.sampling, asked.answer)
    stops = [index for index, token_id in enumerate(ids) if token_id in asked.stop_ids]
    return ids[: stops[0] + 1] if stops else ids


def mixed(count: int, seed: int = 0) -> list[Request]:
    """Greedy and drawn, several answers to a prompt, with known tokens, with stops, of one."""
    dice, made = random.Random(seed), []
    for index in range(count):
        prompt = prompt_of(dice.randint(1, 30), dice.randrange(4))
        sampling = Sampling(1.0, seed=index, top_logprobs=2) if index % 3 else Sampling()
        most = dice.choice([1, 2, 3, 9, 14])
        answer = dice.randrange(3)
        whole = alone(prompt, most, sampling, answer)
        known = tuple(whole[: dice.choice([0, 0, 1, 4])][: most - 1])
        left = whole[len(known) :]
        stop_ids = frozenset({dice.choice(left)} - set(known)) if index % 4 == 0 else frozenset()
        made.append(
            request(
                f"{seed}.{index}",
                prompt,
                most,
                sampling=sampling,
                answer=answer,
                known_ids=known,
                stop_ids=stop_ids,
            )
        )
    return made


def check(prefill, decode, requests):
    run(prefill, decode, requests)
    for each in requests:
        assert each.token_ids == expected(each), each.asked.request_id
        last = each.token_ids[-1] in each.asked.stop_ids
        assert each.finish_reason == ("stop" if last else "length")
    assert prefill.is_settled()
    assert decode.is_settled()


def test_the_config_of_these_tests_is_the_tiny_model(tmp_path):
    read = hf_config.find(tiny_config(tmp_path), "float64")
    assert {**vars(read), "name": ""} == {**vars(TINY), "name": ""}


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize(
    ("block_tokens", "chunk_tokens", "lane"),
    [(1, 7, "auto"), (4, 16, "stream"), (5, 6, "auto"), (16, 64, "stream")],
)
def test_tokens_are_those_of_one_engine(tmp_path, kind, block_tokens, chunk_tokens, lane):
    with script(tmp_path, kind, b"a key") as made:
        sizes = {"block_tokens": block_tokens, "most_tokens_per_step": chunk_tokens}
        prefill = made.thread("prefill", num_blocks=-(-150 // block_tokens), **sizes)
        decode = made.thread("decode", num_blocks=-(-100 // block_tokens), lane=lane, **sizes)
        check(prefill, decode, mixed(14, seed=block_tokens))


@pytest.mark.parametrize(("kind", "lane"), [("unix", "auto"), ("tcp", "stream")])
def test_tokens_are_those_of_one_engine_from_processes_of_their_own(tmp_path, kind, lane):
    """Which end in order: told to, by a signal, or with their standard input."""
    with script(tmp_path, kind, b"a key") as made:
        prefill, first = made.process("prefill", block_tokens=4)
        decode, second = made.process("decode", block_tokens=4, lane=lane)
        check(prefill, decode, mixed(10))
        lanes = {pulled.lane for pulled in decode.take(Pulled)}
        assert lanes == {"tcp"} if lane == "stream" else lanes <= {"cma", "unix"}
        check(prefill, decode, mixed(3, seed=1))
        if kind == "unix":
            first.terminate()
            second.stdin.close()
        else:
            prefill.say(Stop())
            decode.channel.close()
        assert first.wait(LONGEST_S) == 0
        assert second.wait(LONGEST_S) == (0 if kind == "unix" else 1)
        left = [path.name for path in tmp_path.iterdir()]
        assert set(left) <= {"config.json", "coordinator"}, "sockets are taken away"


def test_a_prompt_that_was_read_before_is_found_at_the_prefill_worker(workers):
    _, prefill, decode = workers
    first, second = request("a", LONG, 3), request("b", LONG, 3)
    run(prefill, decode, [first])
    run(prefill, decode, [second])
    assert (first.reused_tokens, second.reused_tokens) == (0, 20)
    assert first.token_ids == second.token_ids


def test_logprobs_come_along_from_both(workers):
    _, prefill, decode = workers
    asked = request("a", LONG, 3, sampling=Sampling(top_logprobs=2))
    run(prefill, decode, [asked])
    prefill.say(Prefill(request("b", LONG, 3, sampling=Sampling(top_logprobs=2)).asked, "t", 9.0))
    token = prefill.hear(Prefilled).token
    assert token.top_logprobs[0] == (token.token_id, token.logprob)
    assert len(token.top_logprobs) == 2


def begin(prefill, each: Request, deadline_s: float = LONGEST_S) -> Offer:
    prefill.say(Prefill(each.asked, each.transfer_id, deadline_s))
    return prefill.hear(Offered, request_id=each.asked.request_id).offer


def test_an_offer_comes_before_its_prompt_is_read_and_its_end_after_all(workers):
    _, prefill, decode = workers
    each = request("a", prompt_of(90), 3)
    prefill.say(Prefill(each.asked, each.transfer_id, LONGEST_S))
    while not any(isinstance(message, Prefilled) for message in prefill.waiting):
        prefill.listen(1.0)
    order = [type(m) for m in prefill.waiting if not isinstance(m, State) or m.steps in (1, 5)]
    assert order[:4] == [Offered, State, State, Prefilled], "of six steps"
    offer = prefill.hear(Offered).offer
    decode.say(Continue(each.asked, offer, LONGEST_S))
    token = prefill.hear(Prefilled).token
    pulled = decode.hear(Pulled)
    assert pulled.moved_bytes == len(offer.blocks) * 4 * 512
    assert prefill.hear(Ended) == Ended("a/0", "released")
    decode.say(Start("a", token.token_id))
    ids = [token.token_id, *(decode.hear(Tokens).tokens[0].token_id for _ in range(2))]
    assert ids == expected(each)


def test_layers_are_ready_one_by_one_in_the_step_that_ends_the_prompt(workers, monkeypatch):
    _, prefill, _ = workers
    told, ready = [], Exporter.layers_ready

    def layers_ready(exporter, transfer_id, count):
        told.append((transfer_id, count))
        ready(exporter, transfer_id, count)

    monkeypatch.setattr(Exporter, "layers_ready", layers_ready)
    begin(prefill, request("a", prompt_of(40), 3))  # in three chunks
    prefill.hear(Prefilled)
    assert told == [("a/0", count) for count in range(1, TINY.num_layers + 1)]


def test_the_token_may_come_before_the_cache(tmp_path):
    with script(tmp_path) as made:
        prefill = made.thread("prefill", pace_bytes_per_s=10 * SLOW)
        decode = made.thread("decode")
        each = request("a", LONG, 3)
        decode.say(Continue(each.asked, begin(prefill, each), LONGEST_S))
        decode.say(Start("a", prefill.hear(Prefilled).token.token_id))
        ids = [decode.hear(Tokens).tokens[0].token_id for _ in range(2)]
        assert ids == expected(each)[1:]
        decode.hear(Pulled)


STAGES = ["before it is read", "while it is read", "offered", "pulling", "pulled", "decoding"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("other_is_told_too", [True, False])
def test_a_cancelled_request_gives_back_its_blocks_at_every_stage(
    tmp_path, stage, other_is_told_too
):
    """Those of whoever is told; the other side's when the read has failed, or by a word."""
    with script(tmp_path) as made:
        pace = SLOW if stage == "pulling" else None
        prefill = made.thread("prefill", pace_bytes_per_s=pace, most_tokens_per_step=6)
        decode = made.thread("decode")
        each = request("a", prompt_of(90) if stage == "while it is read" else LONG, 60)
        prefill.say(Prefill(each.asked, each.transfer_id, LONGEST_S))
        if stage != "before it is read":
            offer = prefill.hear(Offered).offer
        if stage in ("pulling", "pulled", "decoding"):
            decode.say(Continue(each.asked, offer, LONGEST_S))
            token_id = prefill.hear(Prefilled).token.token_id
        if stage in ("pulled", "decoding"):
            decode.hear(Pulled)
        if stage == "decoding":
            decode.say(Start("a", token_id))
            decode.hear(Tokens)
        if stage == "pulling":
            decode.hear(State, leases=1)
        decode.say(Cancel("a"))
        assert decode.is_settled()
        if other_is_told_too:
            prefill.say(Cancel("a"))
        prefill.say(Withdraw("a/0"))
        assert prefill.is_settled()
        ends = [message.how for message in prefill.take(Ended)]
        released = stage in ("pulled", "decoding")
        assert ends in ([["released"]] if released else [["withdrawn"], []])
        assert bool(ends) or stage == "before it is read"
        assert not decode.take(Failed)
        assert not prefill.take(Failed)
        check(prefill, decode, [request("next", prompt_of(4), 9)])


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_called_off_and_whenever_no_block_is_lost(tmp_path, seed):
    """Many at once in small caches; some are cancelled, withdrawn or late, on one side or both."""
    dice = random.Random(seed)
    with script(tmp_path) as made:
        pace = dice.choice([None, 200 * SLOW])
        prefill = made.thread("prefill", pace_bytes_per_s=pace, reuse=seed != 1)
        decode = made.thread("decode", num_blocks=20)
        asked = {each.asked.request_id: each for each in mixed(40, seed)}
        waiting, offered = list(asked.values()), []
        while waiting:
            for each in [waiting.pop() for _ in range(min(len(waiting), dice.randint(0, 5)))]:
                deadline_s = dice.choice([LONGEST_S, LONGEST_S, 0.05])
                prefill.say(Prefill(each.asked, each.transfer_id, deadline_s))
            for message in (*prefill.take(Offered, Prefilled), *decode.take(Tokens)):
                obeyed(asked, decode, message)
                offered += [message] if isinstance(message, Offered) else []
            if dice.random() < 0.5:
                each = dice.choice(list(asked.values()))
                dice.choice([prefill, decode]).say(Cancel(each.asked.request_id))
            if dice.random() < 0.3:
                prefill.say(Withdraw(dice.choice(list(asked.values())).transfer_id))
            prefill.listen(dice.choice([0.0, 0.1]))
        for each in asked.values():
            assert each.token_ids == expected(each)[: len(each.token_ids)]
            prefill.say(Cancel(each.asked.request_id))
            decode.say(Cancel(each.asked.request_id))
        assert prefill.is_settled()
        late = prefill.take(Offered)
        for message in late:
            decode.say(Continue(asked[message.request_id].asked, message.offer, LONGEST_S))
        assert decode.is_settled()
        ended = [message.transfer_id for message in prefill.take(Ended)]
        given = [message.offer.transfer_id for message in (*offered, *late)]
        assert sorted(ended) == sorted(given), "every lease ends, and once"
        assert given
        for peer in (prefill, decode):
            peer.take(Failed)
        check(prefill, decode, mixed(4, 100 + seed))


def test_a_lease_that_nobody_reads_expires(workers):
    _, prefill, _ = workers
    begin(prefill, request("a", LONG, 3), deadline_s=0.5)
    prefill.hear(Prefilled)
    assert prefill.hear(Ended) == Ended("a/0", "expired")
    assert prefill.is_settled()
    assert not prefill.take(Failed), "the prefill itself was in time"


def test_a_prompt_that_is_not_read_in_time_fails_and_may_be_tried_again(workers):
    _, prefill, _ = workers
    held = request("held", prompt_of(93), 3)
    begin(prefill, held)  # all blocks
    late = request("late", LONG, 3)
    prefill.say(Prefill(late.asked, late.transfer_id, 0.5))
    failed = prefill.hear(Failed)
    assert (failed.request_id, failed.again) == ("late", True)
    assert "deadline passed" in failed.reason
    prefill.say(Withdraw("held/0"))
    assert prefill.is_settled()
    over = request("over", LONG, 3)
    prefill.say(Prefill(over.asked, over.transfer_id, 0.0))
    assert prefill.hear(Failed, request_id="over").again
    assert prefill.is_settled()


def test_a_cache_waits_for_room_in_the_order_of_arrival_until_its_deadline(workers):
    _, prefill, decode = workers
    first, second, third = (request(name, LONG, 5) for name in "abc")
    large = request("large", prompt_of(80), 8)
    tokens = {}
    for each in (large, first, second, third):
        offer = begin(prefill, each)
        tokens[each.asked.request_id] = prefill.hear(Prefilled).token.token_id
        deadline_s = 1.0 if each is third else LONGEST_S
        decode.say(Continue(each.asked, offer, deadline_s))
    decode.hear(Pulled, request_id="large")
    decode.hear(State, num_waiting=3)
    failed = decode.hear(Failed)
    assert (failed.request_id, failed.again) == ("c", True)
    assert "while it was waiting" in failed.reason
    for name in ("a", "b"):  # before their caches
        decode.say(Start(name, tokens[name]))
    decode.say(Cancel("large"))
    assert decode.hear(Pulled).request_id == "a"
    assert decode.hear(Pulled).request_id == "b"
    told = {"a": [tokens["a"]], "b": [tokens["b"]]}
    while min(map(len, told.values())) < 5:
        for token in decode.hear(Tokens).tokens:
            told[token.request_id].append(token.token_id)
    assert told == {"a": expected(first), "b": expected(second)}
    assert decode.is_settled()
    prefill.say(Withdraw("c/0"))
    assert prefill.is_settled()


def test_a_cache_without_its_token_is_given_up_at_the_deadline(workers):
    _, prefill, decode = workers
    each = request("a", LONG, 5)
    decode.say(Continue(each.asked, begin(prefill, each), 0.8))
    decode.hear(Pulled)
    failed = decode.hear(Failed)
    assert failed.again
    assert "while it was read" in failed.reason
    assert decode.is_settled()
    assert prefill.is_settled()


def test_what_can_never_be_is_refused_for_good(workers):
    _, prefill, decode = workers
    for asked, words in [
        (request("large", prompt_of(97), 2), "96 tokens in the cache"),
        (request("odd", (61,), 2), "from 0 to 60"),
        (request("known", (1,), 2, known_ids=(1, 2)), "2 tokens are known, of an answer of 2"),
    ]:
        prefill.say(Prefill(asked.asked, asked.transfer_id, LONGEST_S))
        failed = prefill.hear(Failed)
        assert not failed.again
        assert words in failed.reason
    offer = begin(prefill, request("a", LONG, 3))
    long, short = request("long", prompt_of(90), 60), request("short", (1,), 3)
    for asked, words in [(long, "96 tokens in the cache"), (short, "1 blocks are to be read; 6")]:
        decode.say(Continue(asked.asked, offer, LONGEST_S))
        failed = decode.hear(Failed)
        assert (failed.request_id, failed.again) == (asked.asked.request_id, False)
        assert words in failed.reason
    prefill.say(Withdraw("a/0"))
    assert prefill.is_settled()
    assert decode.is_settled()


def test_a_token_that_ends_the_answer_starts_nothing(workers):
    _, prefill, decode = workers
    each = request("a", LONG, 5, stop_ids=frozenset({60}))
    decode.say(Continue(each.asked, begin(prefill, each), LONGEST_S))
    decode.say(Start("a", 60))
    failed = decode.hear(Failed)
    assert not failed.again
    assert "has nothing to run after it" in failed.reason
    assert decode.is_settled()


def test_an_id_that_is_used_twice_fails_the_second_and_harms_no_other(workers):
    _, prefill, decode = workers
    each = request("a", LONG, 60)
    offer = begin(prefill, each)
    prefill.say(Prefill(request("b", LONG, 3).asked, each.transfer_id, LONGEST_S))
    assert prefill.hear(Failed, request_id="b").again is False
    decode.say(Continue(each.asked, offer, LONGEST_S))
    decode.hear(Pulled)
    decode.say(Continue(request("b", LONG, 3).asked, offer, LONGEST_S))
    assert decode.hear(Failed, request_id="b").again is False
    decode.say(Start("a", prefill.hear(Prefilled).token.token_id))
    decode.hear(Tokens)
    prefill.hear(Ended)
    prefill.say(Prefill(request("c", LONG, 3).asked, each.transfer_id, LONGEST_S))
    failed = prefill.hear(Failed, request_id="c")
    assert "offered once" in failed.reason
    assert failed.again is False
    assert prefill.is_settled()
    decode.say(Cancel("a"))
    assert decode.is_settled()


def test_a_new_try_takes_the_place_of_an_earlier_one(workers):
    """With the tokens that are known by then."""
    _, prefill, decode = workers
    each = request("a", LONG, 6)
    first = begin(prefill, each)
    token_id = prefill.hear(Prefilled).token.token_id
    decode.say(Continue(each.asked, first, LONGEST_S))
    decode.hear(Pulled)
    again = request("a", LONG, 6, known_ids=(token_id,))
    again.transfer_id = "a/1"
    run(prefill, decode, [again])
    assert again.token_ids == expected(each)
    assert decode.is_settled()
    assert prefill.is_settled()


def test_an_offer_of_an_earlier_start_is_lost_and_asks_for_another(workers):
    _, prefill, decode = workers
    each = request("a", LONG, 3)
    offer = begin(prefill, each)
    stale = Offer(offer.transfer_id, offer.address, "earlier", offer.blocks, offer.generations)
    gone = Offer("b/0", "unix:/nowhere/at/all", "x", offer.blocks, offer.generations)
    other = Offer("c/0", "nonsense", "x", offer.blocks, offer.generations)
    for name, lost, again in [("a", stale, True), ("b", gone, True), ("c", other, False)]:
        decode.say(Continue(request(name, LONG, 3).asked, lost, LONGEST_S))
        assert decode.hear(Failed, request_id=name).again is again
    assert decode.is_settled()


def test_one_who_is_preempted_after_its_start_says_what_it_would_have_said(tmp_path):
    with script(tmp_path) as made:
        prefill = made.thread("prefill")
        decode = made.thread("decode", num_blocks=9, capacity_tokens=36)
        requests = [request(str(i), prompt_of(8, i), 20) for i in range(3)]
        run(prefill, decode, requests)
        assert [each.token_ids for each in requests] == [expected(each) for each in requests]
        assert decode.is_settled()
        assert decode.hear(State).preemptions > 0


def test_a_reader_that_is_killed_costs_the_prefill_worker_nothing(tmp_path):
    with script(tmp_path) as made:
        prefill = made.thread("prefill", pace_bytes_per_s=SLOW)
        decode, process = made.process("decode")
        each, other = request("a", LONG, 3), request("b", prompt_of(2), 4)
        decode.say(Continue(each.asked, begin(prefill, each, deadline_s=4.0), LONGEST_S))
        decode.hear(State, leases=1)
        process.kill()
        assert prefill.hear(Ended) == Ended("a/0", "expired")
        assert prefill.is_settled()
        check(prefill, made.thread("decode"), [other])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_exporter_that_is_killed_or_stopped_costs_its_own_requests_only(tmp_path, how):
    with script(tmp_path) as made:
        prefill, process = made.process("prefill", pace_bytes_per_s=SLOW)
        lose_an_exporter(made, prefill, process, how)


def lose_an_exporter(made, prefill, process, how):
    """While its cache is read, beside another answer that decodes."""
    quick, decode = made.thread("prefill"), made.thread("decode")
    each, lasting = request("a", LONG, 3), request("lasting", prompt_of(4), 60)
    decode.say(Continue(lasting.asked, begin(quick, lasting), LONGEST_S))
    first = quick.hear(Prefilled).token.token_id
    decode.hear(Pulled)
    decode.say(Continue(each.asked, begin(prefill, each), 3.0))
    decode.hear(State, leases=2)
    decode.say(Start("lasting", first))
    os.kill(process.pid, how)
    failed = decode.hear(Failed)
    assert (failed.request_id, failed.again) == ("a", True)
    told = [first]
    while len(told) < 60:
        told += [token.token_id for token in decode.hear(Tokens).tokens]
    assert told == expected(lasting)
    assert decode.is_settled()
    if how == signal.SIGSTOP:  # what it sends late has nowhere to go
        process.send_signal(signal.SIGCONT)
        prefill.say(Withdraw("a/0"))
        assert prefill.is_settled()
        check(prefill, decode, [request("next", prompt_of(2), 4)])
    again = request("a", LONG, 3)
    again.transfer_id = "a/1"
    check(quick, decode, [again])


def test_a_worker_says_its_state_when_nothing_happens(workers):
    _, prefill, _ = workers
    for _ in range(3):
        assert prefill.hear(State).free_blocks == 24


def test_a_worker_is_heard_while_a_long_step_runs(workers, monkeypatch):
    _, prefill, _ = workers
    ends, run = threading.Event(), PrefillWorker.step

    def step(worker):
        ends.wait(30)
        return run(worker)

    monkeypatch.setattr(PrefillWorker, "step", step)
    each = request("r", [1, 2, 3], 1)
    prefill.say(Prefill(each.asked, "r", LONGEST_S))
    prefill.take(State)
    for _ in range(2):
        assert prefill.hear(State).sampled_tokens == 0
    assert not prefill.take(Prefilled)
    ends.set()
    prefill.hear(Prefilled)


def test_options_and_key_come_by_one_line(tmp_path):
    with script(tmp_path) as made:
        options = made.options("decode", lane="cma")
    assert read_first_line(first_line(options, b"key")) == (options, b"key")
    assert read_first_line(first_line(options, None)) == (options, None)
    for line in (b"", b"[]", b'{"options": {"role": "neither"}, "key": null}'):
        with pytest.raises(ValueError, match=r"^a worker's first line has"):
            read_first_line(line)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"coordinator": "tcp:127.0.0.1:1"}, "nobody answers at tcp:127.0.0.1:1"),
    ],
)
def test_a_worker_that_cannot_begin_says_why_in_one_line(tmp_path, changes, words):
    with script(tmp_path) as made:
        options = made.options("decode", **changes)
        ended = subprocess.run(
            [sys.executable, "-m", "prefill_decode.disaggregated.worker"],
            input=first_line(options, None),
            capture_output=True,
            timeout=LONGEST_START_S,
            check=False,
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith("the worker ends: ")
    assert words in line
