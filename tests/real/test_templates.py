"""Every chat template with tools of llama.cpp: how it writes calls is found, read back at any cut, and forced."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers
from llguidance import LLTokenizer

from engine.bundle.answer_format import AnswerFormat, LiteralArguments, TaggedArguments
from engine.demo.location import demo_folder
from engine.grammar.call_rules import Literals
from engine.grammar.compiler import serialised, unforced
from engine.grammar.masks import control_tokens, load_tokenizer, new_matcher
from engine.grammar.spec import CalledTool, GrammarSpec, ToolCalls
from engine.text.format_table import atoms, is_tag
from tests.real.chat_templates import FUNCTIONS, INSIDE, OUTSIDE, calls_of, loaded, marks, read, spoken, written
from tests.real.written_calls import TEMPLATES

LONG = 200  # characters, of which not every cut is tried
NAMES = pytest.mark.parametrize("name", TEMPLATES)


def styled(answer: AnswerFormat) -> str:
    """The style of the arguments, as `written_calls.py` names it."""
    assert answer.calls is not None
    match answer.calls.arguments:
        case TaggedArguments(item=item, wrap=wrap, assign=assign):
            own = "nested" if item else "wrapped" if wrap is not None else "tagged"
            return "typed" if own == "tagged" and len(set(assign.values())) > 1 else own
        case LiteralArguments():
            return "literal"
    return "json"


def test_the_folder_holds_no_other_template_with_tools(llama_cpp_models: Path) -> None:
    files = (llama_cpp_models / "templates").glob("*.jinja")
    assert {file.stem for file in files if "tools" in file.read_text(encoding="utf-8")} == TEMPLATES.keys()


@NAMES
def test_how_it_writes_is_found(llama_cpp_models: Path, name: str) -> None:
    answer, expected = loaded(llama_cpp_models, name).answer, TEMPLATES[name]
    form = answer.calls
    assert form is not None
    assert (styled(answer), form.opening + form.begin) == (expected.style, expected.before)
    assert (form.end + form.closing, form.between is not None) == (expected.behind, expected.several)
    assert (answer.reasoning.opening if answer.reasoning is not None else "") == expected.reasoning


@NAMES
def test_a_call_is_read_back(llama_cpp_models: Path, name: str) -> None:
    """Written, read and rendered again: the same text; and the same calls wherever the text is cut."""
    template = loaded(llama_cpp_models, name)
    calls = calls_of(template.answer, marks(template.answer))
    several = [calls] if TEMPLATES[name].several else []
    for called in [[one] for one in calls] + several:
        text = written(llama_cpp_models, name, called)
        once = read(template.answer, [text])
        again = [(function, json.loads(given)) for function, given in once[1]]
        assert again == called
        assert written(llama_cpp_models, name, again) == text
        assert template.turn(again) == template.turn(called) and text in template.turn(called)
        is_long = called != calls[:1] and len(text) > LONG
        for cut in range(1, len(text), 17 if is_long else 1):
            assert read(template.answer, [text[:cut], text[cut:]]) == once
        assert read(template.answer, list(text)) == once


class Vocabulary:
    """The embedded model's tokens, with the tags of a template as control tokens or as text."""

    def __init__(self, folder: Path, controls: list[str]) -> None:
        self._own = tokenizers.Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
        self._own.add_special_tokens(controls)
        file = folder / f"{len(controls)}.json"
        self._own.save(str(file))
        self.seen: LLTokenizer = load_tokenizer(file, self._own.get_vocab_size(), [2, 0])
        self.controls: Mapping[str, int] = control_tokens(self.seen)

    def ids(self, text: str) -> list[int]:
        """Tokens of a text; the marks inside of a string are spelled."""
        before, _, rest = text.partition(INSIDE)
        inside, found, behind = rest.partition(OUTSIDE)
        signs = [token for character in f"{INSIDE}{inside}{OUTSIDE}" if found for token in self._encode(character)]
        return [*self._encode(before), *signs, *self._encode(behind)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return ids


def accepts(vocabulary: Vocabulary, answer: AnswerFormat, text: str, is_forced: bool, most: int = 0) -> bool:
    """Whether a grammar of this model's calls accepts a whole text."""
    assert answer.calls is not None
    tools = tuple(CalledTool(name, json.dumps(schema), is_lenient=False) for name, schema in FUNCTIONS.items())
    mark, around = answer.mark(answer.calls), answer.around
    calls = ToolCalls(answer.calls, tools, is_forced, most, None, mark, around, answer.prefill, answer.id_chars)
    grammar = serialised(GrammarSpec(calls), Literals(vocabulary.controls))
    matcher = new_matcher(vocabulary.seen, unforced(grammar, tuple(vocabulary.controls)))
    ids = vocabulary.ids(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("has_controls", [False, True], ids=["text", "control tokens"])
@NAMES
def test_calls_are_forced_and_free(llama_cpp_models: Path, tmp_path: Path, name: str, has_controls: bool) -> None:
    answer = loaded(llama_cpp_models, name).answer
    tags = sorted({atom for text in answer.literals for atom in atoms(text) if is_tag(atom)}) if has_controls else []
    tags = ["]<]minimax[>["] if has_controls and name == "MiniMax-M3" else tags
    vocabulary = Vocabulary(tmp_path, tags)
    is_told = has_controls or name != "MiniMax-M3"  # what opens its tags is always a control token
    calls = calls_of(answer, marks(answer) if is_told else [])
    called = [calls[0], calls[1], *calls[-2:]] if TEMPLATES[name].several else calls[:1]
    text = spoken(answer, written(llama_cpp_models, name, called))
    assert accepts(vocabulary, answer, text, is_forced=True)
    assert accepts(vocabulary, answer, text, is_forced=False)
    for wrong in (text.replace("get_weather", "get_climate"), text.replace("text", "test")):
        assert not accepts(vocabulary, answer, wrong, is_forced=True)
        assert not accepts(vocabulary, answer, wrong, is_forced=False)
    assert not accepts(vocabulary, answer, "Hello", is_forced=True)
    assert accepts(vocabulary, answer, ("all\n" if answer.prefill else "") + "Hello, how are you?", is_forced=False)
    assert accepts(vocabulary, answer, text, is_forced=True, most=1) is (len(called) == 1)
