"""Tokenizer, template and stop tokens of a bundle."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, processors
from transformers import PreTrainedTokenizerFast

from engine.bundle.answer_format import Markers
from engine.bundle.manifest import TextSpec
from engine.bundle.specs import UsualSampling
from engine.compile.sources.text_files import load_tokenizer, write_text_files
from engine.text.prompt import MessageForm, PromptMaker
from engine.text.renderer import ChatTemplate
from engine.text.tokenizer import Tokenizer as TextTokenizer
from tools.random_checkpoint import byte_tokenizer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a byte tokenizer: 256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>."""
    folder = tmp_path / "source"
    folder.mkdir()
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def describe(source: Path, config: dict[str, object] | None = None) -> tuple[TextSpec, Path]:
    output = source.parent / "bundle"
    output.mkdir()
    return write_text_files(source, output, config or {}, 300), output


def settings(source: Path, **values: object) -> None:
    (source / "tokenizer_config.json").write_text(json.dumps(values))


def test_template_from_its_own_file(source: Path) -> None:
    """chat_template.jinja wins over tokenizer_config.json."""
    settings(source, chat_template="old")
    (source / "chat_template.jinja").write_text("new\n")
    text, output = describe(source)
    assert text.chat_template == "chat_template.jinja"
    assert (output / "chat_template.jinja").read_text() == "new\n"
    assert (output / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_an_added_token_that_no_embedding_has_is_plain_text(source: Path) -> None:
    """Gemma 3's small models have one for images; no prompt may give its id."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(300 - tokenizer.get_vocab_size())])
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    tokenizer.save(str(source / "tokenizer.json"))
    assert tokenizer.token_to_id("<image>") == 300
    written = load_tokenizer(describe(source)[1])
    assert written.token_to_id("<image>") is None and max(written.encode("a<image>").ids) < 256
    assert written.get_vocab_size() == 300


@pytest.mark.parametrize(
    ("advised", "expected"),
    [
        ({}, UsualSampling()),
        # Of Qwen2.5-Instruct.
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
            UsualSampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1),
        ),
        ({"temperature": 1, "min_p": 0.05, "top_p": None}, UsualSampling(temperature=1.0, min_p=0.05)),
        ({"temperature": 3.0, "top_k": 1.5, "top_p": "0.9", "min_p": True, "repetition_penalty": 0}, UsualSampling()),
        ({"temperature": float("nan"), "top_k": 40}, UsualSampling(top_k=40)),
    ],
)
def test_how_the_model_is_sampled_unless_a_request_says(
    source: Path, advised: dict[str, object], expected: UsualSampling
) -> None:
    (source / "generation_config.json").write_text(json.dumps(advised))
    assert describe(source)[0].sampling == expected


def test_template_from_the_tokenizer_config(source: Path) -> None:
    """Always written as a file."""
    settings(source, chat_template="{{ messages }}")
    assert (describe(source)[1] / "chat_template.jinja").read_text() == "{{ messages }}"


def test_template_of_a_processor(source: Path) -> None:
    """Older folders of models that read images have it beside that of the tokenizer, which knows no images."""
    settings(source, chat_template="of text")
    (source / "chat_template.json").write_text(json.dumps({"chat_template": "of text and images"}))
    assert (describe(source)[1] / "chat_template.jinja").read_text() == "of text and images"


def test_named_templates(source: Path) -> None:
    """Of a list the default is taken, and that for tools where there are some, each as if it were alone."""
    texts = {"tool_use": "\n t{{ tools[0] }}\n  ", "default": "\nd\n", "rag": "r"}
    settings(source, chat_template=[{"name": name, "template": text} for name, text in texts.items()])
    template = ChatTemplate((describe(source)[1] / "chat_template.jinja").read_text())
    assert template.render([], [{"a": 1}], {}, 100) == "\n t{'a': 1}\n  "
    assert [template.render([], tools, {}, 100) for tools in (None, [])] == ["\nd", "\nd"]


def test_a_template_for_tools_is_a_file_of_its_own(source: Path) -> None:
    """As transformers saves and renders two templates."""
    texts = {"default": "d{{ messages[0].content }}", "tool_use": "t{{ tools[0].function.name }}"}
    PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), chat_template=texts).save_pretrained(source)
    assert (source / "additional_chat_templates" / "tool_use.jinja").exists()
    theirs = PreTrainedTokenizerFast.from_pretrained(source)
    ours = ChatTemplate((describe(source)[1] / "chat_template.jinja").read_text())
    messages = [{"role": "user", "content": "hi"}]
    for tools, text in (([{"type": "function", "function": {"name": "f"}}], "tf"), (None, "dhi")):
        assert ours.render(messages, tools, {}, 100) == text
        assert theirs.apply_chat_template(messages, tools=tools, tokenize=False) == text


def test_no_template(source: Path) -> None:
    """A completion model has none."""
    text, output = describe(source)
    assert text.chat_template is None and not (output / "chat_template.jinja").exists()


def test_stop_ids_are_gathered_from_everywhere(source: Path) -> None:
    """generation_config (a list), config (a number), the tokenizer's end token and the template's mark."""
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    settings(source, chat_template="<|im_start|>x<|im_end|><|eot_id|>", eos_token={"content": "<|endoftext|>"})
    text, _ = describe(source, {"eos_token_id": 7})
    assert text.stop_ids == (5, 6, 7, 256, 258)
    assert text.eos_token == "<|endoftext|>"


def test_markers_that_the_template_writes(source: Path) -> None:
    """Reasoning and tool calls are announced only where both ends occur."""
    settings(source, chat_template="<think></think><tool_call>")
    assert describe(source)[0].writes.reasoning == Markers("<think>", "</think>")


def test_bos_by_setting_and_by_behaviour(source: Path) -> None:
    """The tokenizer's own post-processing counts when no setting says otherwise."""
    settings(source, bos_token="<|endoftext|>")
    assert describe(source)[0].add_bos is False
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    tokenizer.save(str(source / "tokenizer.json"))
    (source.parent / "bundle").rename(source.parent / "first")
    assert describe(source)[0].add_bos is True
    settings(source, bos_token="<|endoftext|>", add_bos_token=False)
    (source.parent / "bundle").rename(source.parent / "second")
    assert describe(source)[0].add_bos is False


def test_two_tokens_before_a_text_are_those_of_transformers(source: Path) -> None:
    """GLM-4's [gMASK]<sop>: once, also before a prompt that has them."""
    tokenizer = byte_tokenizer()
    before = [("<|endoftext|>", 256), ("<|im_start|>", 257)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> <|im_start|> $A", special_tokens=before
    )
    tokenizer.save(str(source / "tokenizer.json"))
    spec, folder = describe(source)
    ours, theirs = TextTokenizer.load(folder, spec), PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert spec.prefix == (256, 257) and not spec.add_bos
    whole = ours.with_bos(ours.encode("one", allow_special=True))
    assert list(whole) == theirs("one")["input_ids"] and whole[:2] == spec.prefix and ours.with_bos(whole) == whole
    maker = PromptMaker(ours, None, {}, MessageForm())
    assert [maker.text("one", 100, keep) for keep in (1, 2, 3)] == [(256,), (256, 257), (256, 257, whole[-1])]
