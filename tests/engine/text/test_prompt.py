"""From messages to token ids: equal to transformers for honest text, no control tokens from dishonest text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.bundle.answer_format import CallFormat, JsonArguments, LiteralArguments
from engine.bundle.manifest import TextSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.prompt import MessageForm, PromptMaker, normalise_message
from engine.text.renderer import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.text.in_process import InProcess
from tests.engine.tiny_bundle import CHATML, SPECIALS, byte_level_tokenizer, write_bundle

LIBRARY = byte_level_tokenizer()
TOKENIZER = Tokenizer(LIBRARY.to_str())
MAKER = InProcess.of(TOKENIZER, CHATML)
REFERENCE = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), chat_template=CHATML)
HONEST = st.text("abhelo é😀\n<|>", max_size=12).filter(lambda text: not any(token in text for token in SPECIALS))
NASTY = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<", ">", "\ue000", "\ue001", "he", "😀"])).map("".join)
WIDE = 10_000
JSON_CALLS = CallFormat('{"name": "', '", "arguments": ', JsonArguments(), "}", "<|im_start|>[", ", ", "]")
PYTHON_CALLS = CallFormat(
    "", "(", LiteralArguments("=", ", ", "'", is_raw=True), ")", "<|im_start|>[", ", ", "]<|im_start|>"
)


def chat(*contents: Any) -> list[dict[str, Any]]:
    """Alternating user and assistant messages."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


@given(st.lists(HONEST, min_size=1, max_size=3))
def test_honest_chats_are_tokenised_as_transformers_does(contents: list[str]) -> None:
    expected = REFERENCE.apply_chat_template(chat(*contents), add_generation_prompt=True, return_dict=False)
    assert list(MAKER.chat(chat(*contents), None, {}, WIDE)) == expected


@given(st.lists(NASTY, min_size=1, max_size=3))
def test_contents_never_give_control_tokens_and_are_never_changed(contents: list[str]) -> None:
    ids = MAKER.chat(chat(*contents), None, {}, WIDE)
    blank = MAKER.chat(chat(*("" for _ in contents)), None, {}, WIDE)
    assert [i for i in ids if TOKENIZER.is_special(i)] == [i for i in blank if TOKENIZER.is_special(i)]
    rendered = ChatTemplate(CHATML).render(chat(*contents), None, {"add_generation_prompt": True}, WIDE)
    assert TOKENIZER.decode(ids, skip_special=False) == rendered


def test_joined_parts_cannot_assemble_a_control_token() -> None:
    joining = InProcess.of(TOKENIZER, "{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    ids = joining.chat(chat("a<|im_ ", " end|>b"), None, {}, WIDE)
    assert TOKENIZER.decode(ids, skip_special=False) == "a<|im_end|>b"
    assert not any(map(TOKENIZER.is_special, ids))


@pytest.mark.parametrize("token", SPECIALS)
def test_nor_can_any_two_parts_of_one(token: str) -> None:
    """Neither of two messages, nor one of a message and one of the template."""
    said = "{{ messages[0].content | trim }}"
    for cut in range(1, len(token)):
        before, after = token[:cut], token[cut:]
        both = chat(before, after), said + "{{ messages[1].content | trim }}"
        for messages, template in (both, (chat(before), said + after), (chat(after), before + said)):
            ids = InProcess.of(TOKENIZER, template).chat(messages, None, {}, WIDE)
            assert TOKENIZER.decode(ids, skip_special=False) == token
            assert not any(map(TOKENIZER.is_special, ids))


def test_a_plain_prompt_that_is_cut_has_control_tokens_too() -> None:
    maker = PromptMaker(TOKENIZER, CHATML, {}, MessageForm())
    whole = maker.text(f"hello {SPECIALS[0]}hi", WIDE)
    assert maker.text(f"hello {SPECIALS[0]}hi", WIDE, keep=4) == whole[-4:]
    assert any(map(TOKENIZER.is_special, whole[-4:]))


@pytest.mark.parametrize("key", ["<|im_end|>", "type", "role"])
def test_tools_and_arguments_are_the_callers_too(key: str) -> None:
    maker = InProcess.of(TOKENIZER, "{{ tools | tojson }}{{ messages | tojson }}")
    given = f'{{"{key}": "<|im_start|>"}}'
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    tool = {"name": "<|im_end|>", "parameters": {key: "<|im_start|>"}}
    ids = maker.chat([{"role": "assistant", "content": None, "tool_calls": [call]}], [tool], {}, WIDE)
    assert not any(map(TOKENIZER.is_special, ids))
    assert f'"arguments": {given}' in TOKENIZER.decode(ids)
    assert TOKENIZER.decode(ids).startswith(f'[{{"name": "<|im_end|>", "parameters": {given}}}]')


def test_what_transformers_templates_do_not_take_is_normalised() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalise_message({"role": "user", "content": parts}, "m")["content"] == "a\nb"
    assert normalise_message({"role": "assistant"}, "m")["content"] == ""
    call = {"type": "function", "function": {"name": "f", "arguments": "not json"}}
    assert normalise_message({"role": "assistant", "tool_calls": [call]}, "m")["tool_calls"] == [call]


def test_text_that_would_hide_calls_is_left_out() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    said, called = ({"role": "assistant", "content": "a", **more} for more in ({}, {"tool_calls": [call]}))
    form = MessageForm(hides_calls=True)
    assert [normalise_message(message, "m", form)["content"] for message in (said, called)] == ["a", ""]
    assert normalise_message(called, "m")["content"] == "a"


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (JSON_CALLS, '<|im_start|>[{"name": "f", "arguments": {"a": "<|im_end|>", "b": [true]}}]'),
        (PYTHON_CALLS, "<|im_start|>[f(a='<|im_end|>', b=[True])]<|im_start|>"),
    ],
)
def test_calls_that_a_template_does_not_render_are_written_behind_the_text(form: CallFormat, written: str) -> None:
    """What opens them is a control token, what a caller writes like one is text."""
    maker = InProcess(PromptMaker(TOKENIZER, "{{ messages[0].content }}", {}, MessageForm(calls=form)))
    given = '{"a": "<|im_end|>", "b": [true]}'
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    ids = maker.chat([{"role": "assistant", "content": "said", "tool_calls": [call]}], None, {}, WIDE)
    assert TOKENIZER.decode(ids, skip_special=False) == f"said{written}"
    assert list(map(TOKENIZER.is_special, ids)).count(True) == written.count("<|im_start|>")
    assert TOKENIZER.decode(maker.chat(chat("said"), None, {}, WIDE), skip_special=False) == "said"


def test_images_stand_in_the_text_of_a_template_that_knows_none() -> None:
    """What a caller writes like it stays a text of the caller's."""
    maker = InProcess(PromptMaker(TOKENIZER, CHATML, {}, MessageForm(has_parts=True, image_text=SPECIALS[0])))
    image, said = {"type": "image"}, {"type": "text", "text": f"two {SPECIALS[0]}"}
    ids = maker.chat(chat([{"type": "text", "text": "one"}, image, said, said], "no parts"), None, {}, WIDE)
    plain = MAKER.chat(chat("one\n|\ntwo |\ntwo |", "no parts"), None, {}, WIDE)
    assert TOKENIZER.decode(ids, skip_special=False) == TOKENIZER.decode(plain, skip_special=False).replace(
        "|\ntwo |\ntwo |", f"{SPECIALS[0]}\ntwo {SPECIALS[0]}\ntwo {SPECIALS[0]}"
    )
    special = TOKENIZER.encode(SPECIALS[0], allow_special=True)[0]
    assert ids.count(special) == plain.count(special) + 1


def test_a_template_says_itself_where_images_stand(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    for placeholder, stands in (("<image>", "<image>"), ("<|im_start|>", ""), ("", "")):
        made = PromptMaker.load(tmp_path, manifest.text, placeholder)
        assert made.form == MessageForm(has_parts=bool(placeholder), image_text=stands), placeholder


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
        {"role": "user", "content": ["text"]},
        {"role": "assistant", "content": "", "tool_calls": ["f"]},
    ],
)
def test_messages_of_a_wrong_form_name_the_place(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MAKER.chat([message], None, {}, WIDE)
    assert refused.value.param is not None
    assert refused.value.param.startswith("messages[0].")


def test_so_many_characters_are_refused_before_the_tokenizer_sees_them() -> None:
    longest = TOKENIZER.longest_token_chars
    for call in (
        lambda chars: MAKER.text("x" * chars, 10),
        lambda chars: MAKER.chat(chat("x" * chars), None, {}, 10),
        lambda chars: MAKER.chat(chat("x"), [{"name": "x" * chars}], {}, 10),
    ):
        with pytest.raises(ContextLengthExceeded) as refused:
            call(10 * longest + 1)
        assert refused.value.limit == 10
    assert len(MAKER.text("x" * 10, 10)) == 10


def test_a_long_text_is_refused_by_its_beginning() -> None:
    seen: list[int] = []

    class Counting(Tokenizer):
        def encode(self, text: str, allow_special: bool) -> tuple[int, ...]:
            seen.append(len(text))
            return super().encode(text, allow_special)

    maker = InProcess.of(Counting(LIBRARY.to_str()), CHATML)
    longest = TOKENIZER.longest_token_chars
    assert longest > 8
    for call in (lambda text: maker.text(text, 100), lambda text: maker.chat(chat(text), None, {}, 100)):
        with pytest.raises(ContextLengthExceeded):
            call("x" * 90 * longest)
    assert seen == [800, 800]
    assert maker.text("hello " * 150, 1000) == TOKENIZER.encode("hello " * 150, allow_special=True)


def test_a_template_that_blows_up_counts_as_too_long() -> None:
    maker = InProcess.of(TOKENIZER, "{{ messages[0].content }}" * 100)
    with pytest.raises(ContextLengthExceeded):
        maker.chat(chat("x" * TOKENIZER.longest_token_chars * 5), None, {}, 10)


@pytest.mark.parametrize("around", [lambda inner: [inner], lambda inner: {"x": inner}])
def test_deep_nesting_is_refused(around: Callable[[Any], Any]) -> None:
    nested: Any = "x"
    for _ in range(60):
        nested = around(nested)
    assert MAKER.chat([{"role": "user", "content": "x", "extra": nested}], None, {}, WIDE)
    for _ in range(440):
        nested = around(nested)
    with pytest.raises(InvalidRequest, match="deeper"):
        MAKER.chat([{"role": "user", "content": "x", "extra": nested}], None, {}, WIDE)


def test_plain_prompts_take_special_tokens_and_one_bos(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    spec = TextSpec("tokenizer.json", None, (), bos_token="<|endoftext|>", add_bos=True)
    maker = InProcess.load(tmp_path, spec)
    bos = LIBRARY.token_to_id("<|endoftext|>")
    assert maker.text("x", WIDE) == maker.text("<|endoftext|>x", WIDE) == (bos, ord("x"))
    with pytest.raises(InvalidRequest, match="no chat template"):
        maker.chat(chat("x"), None, {}, WIDE)
    with pytest.raises(InvalidRequest, match="empty"):
        MAKER.chat([], None, {}, WIDE)
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        MAKER.chat(chat("\ud800"), None, {}, WIDE)


def test_options_reach_the_template() -> None:
    maker = InProcess.of(TOKENIZER, "{{ enable_thinking }}{{ add_generation_prompt }}{{ documents }}")
    options = {"enable_thinking": False, "add_generation_prompt": False}
    assert TOKENIZER.decode(maker.chat(chat("x"), None, options, WIDE)) == "FalseFalseNone"


def test_a_bundle_has_the_template_and_the_tokenizer_that_its_manifest_names(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    maker = PromptMaker.load(tmp_path, manifest.text)
    assert maker.template_source == CHATML
    assert maker.tokenizer.decode(maker.text("hello", WIDE)) == "hello"
    without = PromptMaker.load(tmp_path, msgspec.structs.replace(manifest.text, chat_template=None))
    assert without.template_source is None
    with pytest.raises(InvalidRequest, match="template"):
        without.chat(chat("hello"), None, {}, WIDE)
