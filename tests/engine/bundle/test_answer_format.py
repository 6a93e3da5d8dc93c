"""What a description of an answer says by itself."""

import pytest

from engine.bundle.answer_format import ID, NAME, AnswerFormat, CallFormat, JsonArguments, Markers


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            CallFormat('<tool_call>\n{"name": "', '", "arguments": ', JsonArguments(), "}\n</tool_call>"),
            ("<tool_call>", "</tool_call>"),
        ),
        (CallFormat("{", "(", JsonArguments(), "}", "<calls>[", ", ", "]</calls>"), ("<calls>", "</calls>")),
        (CallFormat("<one>", "", JsonArguments(), "</one>", "<all>", "", "</all>"), ("<one>", "</one>")),
        (CallFormat(f"<c><id={ID}>", "", JsonArguments(), f"<end={NAME}></c>"), ("<c>", "</c>")),
        (CallFormat('{"name": "', '", "parameters": ', JsonArguments(), "}"), None),
        (CallFormat("[TOOL_CALLS]", "[ARGS]", JsonArguments(), ""), None),
    ],
)
def test_the_tags_around_a_call(form: CallFormat, expected: tuple[str, str] | None) -> None:
    assert AnswerFormat(calls=form).call_tags == (expected and Markers(*expected))


def test_a_model_without_tools_has_none() -> None:
    assert AnswerFormat().call_tags is None
