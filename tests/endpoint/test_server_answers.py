"""Text is cut exactly where it must be, however it is cut into tokens."""

from hypothesis import given
from hypothesis import strategies as st

from prefill_decode.endpoint.answers import Answer, StopScanner
from prefill_decode.endpoint.tokenizer import ByteTokenizer, Detokenizer
from prefill_decode.engine.answering import SampledToken

TEXTS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def cut_by_hand(text, stops):
    """Letter by letter: the text before the first stop string that is complete."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_a_stop_string_is_found_wherever_pieces_end(pieces, stops):
    scanner = StopScanner(stops)
    shown = ""
    for piece in pieces:
        if not scanner.found:
            shown += scanner.push(piece)
    shown += scanner.finish()
    assert (shown, scanner.found) == cut_by_hand("".join(pieces), stops)


@given(TEXTS, STOPS)
def test_text_is_held_back_only_while_it_may_begin_a_stop_string(text, stops):
    scanner = StopScanner(stops)
    shown = scanner.push(text)
    if not scanner.found:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def sampled(ids, reason="length"):
    last = len(ids) - 1
    return [
        SampledToken("r", 0, token_id, reason if i == last else None, -0.5, ())
        for i, token_id in enumerate(ids)
    ]


def pieces_of(ids, stops, reason="length"):
    answer = Answer(0, Detokenizer(ByteTokenizer(512)), stops)
    found = []
    for token in sampled(ids, reason):
        if not answer.ended:
            found += answer.push(token)
    return answer, found


@given(st.text("ab€ü", min_size=1, max_size=12), st.lists(st.text("ab€", min_size=1, max_size=3)))
def test_pieces_count_every_token_once_and_show_only_text_before_the_stop(text, stops):
    ids = list(text.encode())
    answer, pieces = pieces_of(ids, stops)
    shown, stopped = cut_by_hand(text, stops)
    assert "".join(piece.text for piece in pieces) == shown
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == ("stop" if stopped else "length")
    assert sum(piece.num_tokens for piece in pieces) == answer.num_tokens
    assert stopped or answer.num_tokens == len(ids)


@given(st.text("ab€ü", min_size=1, max_size=12), st.lists(st.text("ab€", min_size=1, max_size=3)))
def test_tokens_come_with_the_text_in_which_they_begin(text, stops):
    _, pieces = pieces_of(list(text.encode()), stops)
    begin = 0
    for piece in pieces:
        end = begin + len(piece.text)
        assert all(begin <= placed.offset < end for placed in piece.placed) or not piece.text
        assert bool(piece.text) == bool(piece.placed)
        begin = end


def test_a_token_that_only_begins_a_stop_string_comes_once_the_string_is_given_up():
    _, pieces = pieces_of(list(b"xaab"), ["ab!"])
    assert [(piece.text, piece.num_tokens) for piece in pieces] == [
        ("x", 1),
        ("a", 1),
        ("ab", 2),
        ("", 0),
    ]


def test_the_models_end_counts_as_a_token_without_text():
    answer, pieces = pieces_of([97, 257], [], reason="stop")
    assert [(piece.text, piece.num_tokens, piece.finish_reason) for piece in pieces] == [
        ("a", 1, None),
        ("", 1, "stop"),
    ]
    assert answer.num_tokens == 2
