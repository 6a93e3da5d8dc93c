"""Token events to deltas."""

from hypothesis import given
from hypothesis import strategies as st

from engine.request import Delta, FinishReason, TokenEvent, TokenLogprob
from engine.text.assembler import StopRules, TextAssembler
from engine.text.tokenizer import Tokenizer
from tests.engine.tiny_bundle import byte_level_tokenizer

LIBRARY = byte_level_tokenizer()
TOKENIZER = Tokenizer(LIBRARY.to_str())
END = LIBRARY.token_to_id("<|im_end|>")


def event(text: str, finish: FinishReason | None = None, stopped_by: int | None = None) -> TokenEvent:
    """One token per byte, with log-probabilities; a stop token behind them."""
    ids = (*text.encode(), *(() if stopped_by is None else (stopped_by,)))
    return TokenEvent(
        "r", ids, tuple(TokenLogprob(i, -1.0, ((i, -1.0), (0xC3, -2.0))) for i in ids), finish, stopped_by
    )


def feed(rules: StopRules, *events: TokenEvent) -> list[Delta]:
    """Feed events until one finishes."""
    assembler, deltas = TextAssembler(TOKENIZER, rules), []
    for item in events:
        deltas.append(assembler.feed(item))
        if deltas[-1].finish is not None:
            break
    return deltas


def test_a_stop_string_ends_the_text_and_drops_the_tokens_behind() -> None:
    first, second = feed(StopRules(("END",)), event("abcE"), event("NDxyz"), event("never"))
    assert (first.text, first.finish) == ("abc", None)
    assert (second.text, second.finish, second.stopped_by) == ("", FinishReason.STOP, "END")
    assert second.token_ids == tuple(b"ND")
    assert [entry.token for entry in second.logprobs] == ["N", "D"]


def test_a_stop_string_may_be_shown() -> None:
    assert feed(StopRules(("ND",), include_stop=True), event("aENDx"))[0].text == "aEND"


def test_a_stop_token_counts_and_is_not_shown() -> None:
    (delta,) = feed(StopRules(end_ids=(END,)), event("ab", FinishReason.STOP, END))
    assert (delta.text, delta.finish, delta.stopped_by) == ("ab", FinishReason.STOP, None)
    assert delta.token_ids == (*b"ab", END)
    assert delta.logprobs[-1].token_bytes == b"<|im_end|>"
    (shown,) = feed(StopRules(skip_special=False), event("ab", FinishReason.STOP, END))
    assert (shown.text, shown.stopped_by) == ("ab<|im_end|>", END)


def test_logprobs_say_which_tokens_the_text_leaves_out() -> None:
    special = TokenEvent("r", (ord("a"), END), (TokenLogprob(ord("a"), -1.0), TokenLogprob(END, -1.0)))
    for skips, text in ((True, "a"), (False, "a<|im_end|>")):
        (delta,) = feed(StopRules(skip_special=skips), special)
        assert (delta.text, [entry.is_hidden for entry in delta.logprobs]) == (text, [False, skips])


def test_an_ordinary_stop_token_is_like_a_stop_string() -> None:
    for include, text in ((False, "ab"), (True, "abZ")):
        (delta,) = feed(StopRules(include_stop=include), event("ab", FinishReason.STOP, ord("Z")))
        assert (delta.text, delta.stopped_by) == (text, ord("Z"))


def test_the_end_gives_out_what_was_held() -> None:
    half = TokenEvent("r", (0xF0, 0x9F), (), FinishReason.LENGTH)
    deltas = feed(StopRules(("EN!",)), event("aE"), event("N"), half)
    assert [delta.text for delta in deltas] == ["a", "", "EN\ufffd"]
    assert deltas[-1].finish is FinishReason.LENGTH


def test_an_unfinished_character_may_complete_a_stop_string() -> None:
    (delta,) = feed(StopRules(("\ufffd",)), TokenEvent("r", (ord("a"), 0xF0), (), FinishReason.LENGTH))
    assert (delta.text, delta.finish) == ("a", FinishReason.STOP)


CALL = StopRules(("END",), once=("<c>", "</c>"))


def test_the_same_part_a_second_time_ends_the_text() -> None:
    deltas = feed(CALL, *map(event, "<c>1</c> <c>2</c>\n<c>1</c><c>3</c>"))
    assert "".join(delta.text for delta in deltas) == "<c>1</c> <c>2</c>\n"
    assert (deltas[-1].finish, deltas[-1].stopped_by) == (FinishReason.STOP, None)


def test_what_a_token_has_behind_a_repeated_part_is_dropped() -> None:
    rules = StopRules(skip_special=False, once=("<|", "|"))
    (delta,) = feed(rules, TokenEvent("r", (END, END, ord("a"))))
    assert (delta.text, delta.token_ids, delta.finish) == ("<|im_end|>", (END, END), FinishReason.STOP)


def test_parts_that_begin_alike_are_given_out_whole() -> None:
    deltas = feed(CALL, *map(event, "<c>12</c><c>1"), event("3</c>END"))
    assert "".join(delta.text for delta in deltas) == "<c>12</c><c>13</c>"
    assert deltas[-1].stopped_by == "END"


@given(st.lists(st.text("<c>/1", max_size=6), max_size=6), st.integers(1, 5))
def test_text_ends_before_the_first_place_where_an_earlier_part_stands_again(pieces: list[str], size: int) -> None:
    text = "<c>".join(piece + "</c>" for piece in pieces)
    again, place = list[tuple[int, int]](), 0
    while (start := text.find("<c>", place)) >= 0 and (end := text.find("</c>", start + 3)) >= 0:
        place = end + 4
        if (second := text.find(text[start:place], place)) >= 0:
            again.append((second + place - start, second))
    expected = text[: min(again)[1]] if again else text
    rules = StopRules(once=("<c>", "</c>"))
    cut = [event(text[start : start + size]) for start in range(0, len(text), size)]
    deltas = feed(rules, *cut, TokenEvent("r", (), (), FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == expected


def test_a_lone_byte_has_no_clean_text_but_its_bytes() -> None:
    delta = feed(StopRules(), event("é"))[0]
    assert [(entry.token, entry.token_bytes) for entry in delta.logprobs] == [("\ufffd", b"\xc3"), ("\ufffd", b"\xa9")]
    assert delta.logprobs[0].top[1] == ("\ufffd", b"\xc3", -2.0)


@given(
    st.text("ab<|im_end|>é😀", max_size=20), st.lists(st.integers(1, 4)), st.sampled_from([(), ("ba",), ("é", "ab")])
)
def test_the_cut_into_events_does_not_matter(text: str, cuts: list[int], stops: tuple[str, ...]) -> None:
    data, events = text.encode(), []
    for size in cuts:
        events.append(TokenEvent("r", tuple(data[:size])))
        data = data[size:]
    events.append(TokenEvent("r", tuple(data), (), FinishReason.LENGTH))
    whole = feed(StopRules(stops), TokenEvent("r", tuple(text.encode()), (), FinishReason.LENGTH))[0]
    deltas = feed(StopRules(stops), *events)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
    assert deltas[-1].stopped_by == whole.stopped_by
