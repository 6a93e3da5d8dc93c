"""Every chat template with tools of llama.cpp: how it writes calls is found, read back at any cut, and forced."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLTokenizer

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER, AnswerFormat, LiteralArguments, TaggedArguments
from engine.demo.location import demo_folder
from engine.grammar.call_rules import Literals
from engine.grammar.compiler import serialised, unforced
from engine.grammar.masks import control_tokens, load_tokenizer, new_matcher
from engine.grammar.spec import CalledTool, GrammarSpec, ToolCalls
from engine.text.answer_finding import find_answer
from engine.text.format_probes import USER, Renderings, probe_requests
from engine.text.format_table import atoms, common_start, is_tag
from engine.text.renderer import ChatTemplate
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.parsing import AnswerParser
from tests.real.written_calls import TEMPLATES

# Templates that show tools and render no calls: the way is told by a table.
UNRENDERED = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
RENDERS_LFM2 = "LFM2.5-8B-A1B"  # of the same family
NAMES = pytest.mark.parametrize("name", TEMPLATES)
PLACES = re.compile(f"{NAME}|{ID}|{NUMBER}|{KEY}")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "documents": None}
PARAMETERS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "options": {"type": "object", "additionalProperties": {"type": "string"}},
    "items": {"type": "array", "items": {"type": "string"}},
    "nested": {
        "type": "array",
        "items": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}},
    },
    "nothing": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}
SCHEMA = {
    "type": "object",
    "properties": {key: value | {"description": "What it is."} for key, value in PARAMETERS.items()},
    "required": ["text"],
}
FUNCTIONS = {
    "get_weather": SCHEMA,
    "send-mail": SCHEMA | {"required": []},
    "tell_time": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A function.", "parameters": schema}}
    for name, schema in FUNCTIONS.items()
]
AWKWARD = "a \"q\" 's' {[(]})\n<b>é 日本 \\n ]"
INSIDE, OUTSIDE = " inside ", " outside "
LONG = 1000
Called = tuple[str, dict[str, Any]]


def marks(answer: AnswerFormat) -> list[str]:
    """What opens and closes in this model's answers, to stand inside of a string: whole and tag by tag."""
    form = answer.calls
    assert form is not None
    quote = form.arguments.quote if isinstance(form.arguments, LiteralArguments) else ""
    texts = [PLACES.sub("text", text).strip() for text in answer.literals if text != quote]
    found = dict.fromkeys(text for whole in texts for text in (whole, *filter(is_tag, atoms(whole))))
    return [text for text in found if text]


def calls_of(answer: AnswerFormat, inside: Sequence[str]) -> list[Called]:
    """Calls with arguments of every type, and with none. inside: what stands inside of strings."""
    every = {
        "text": AWKWARD + " x ".join([INSIDE, *inside, OUTSIDE]),
        "count": 17,
        "ratio": 2.5,
        "flag": True,
        "options": {"x": "y z", "q": "\"'"},
        "items": ["é", "b, c"],
        "nested": [{"x": 1, "y": "日本"}, {}],
        "nothing": None,
    }
    if isinstance(form := answer.calls and answer.calls.arguments, TaggedArguments) and "null" not in form.assign:
        del every["nothing"]  # the template leaves it out
    calls: list[Called] = [("get_weather", every), ("send-mail", {"text": "17", "flag": False})]
    calls += [("send-mail", {"text": mark}) for mark in inside]
    return [*calls, ("send-mail", {}), ("tell_time", {})]


class Template:
    """A template and how it was found to write."""

    def __init__(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8")
        self._chat = ChatTemplate(source)
        rendered = [self._chat.answer(request) for request in probe_requests({"bos_token": "<s>", "eos_token": "</s>"})]
        self.answer: AnswerFormat = find_answer(Renderings.of(rendered), source)

    def turn(self, called: list[Called]) -> str:
        """What a template writes behind the user's message for an answer that is these calls."""
        calls = []
        for number, (name, given) in enumerate(called):
            arguments: Any = json.dumps(given, ensure_ascii=False) if self.answer.has_text_arguments else given
            identifier = f"call_{number:024}"[-self.answer.id_chars :]
            calls.append({"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}})
        return self._rendered([{"role": "assistant", "content": "", "tool_calls": calls}], prompts=False)

    def body(self, called: list[Called]) -> str:
        """What the model writes of it: without the turn's head, and reasoning that was left empty."""
        text, prompt = self.turn(called), self._rendered([], prompts=True)
        form = self.answer.calls
        assert form is not None
        first = (form.opening + form.begin).split("⟨")[0]
        start = text.find(first) if first.strip() else -1
        return text[len(common_start(text, prompt)) if start < 0 or self.answer.prefill else start :]

    def _rendered(self, more: list[dict[str, Any]], prompts: bool) -> str:
        messages = [{"role": "user", "content": USER}, *more]
        variables = {**TOKENS, "add_generation_prompt": prompts}
        return self._chat.render(messages, TOOLS, variables, 1 << 20).rpartition(USER)[2]


def written(folder: Path, name: str, called: list[Called]) -> str:
    """The calls as the model writes them: as its template renders them or, where it renders none, as its card says."""
    if name.startswith("ibm-granite-granite-3.3"):
        listed = [{"name": function, "arguments": given} for function, given in called]
        return f"<|tool_call|>{json.dumps(listed, ensure_ascii=False)}"
    return loaded(folder, RENDERS_LFM2 if name in UNRENDERED else name).body(called)


@lru_cache
def loaded(folder: Path, name: str) -> Template:
    return Template(folder / "templates" / f"{name}.jinja")


def read(answer: AnswerFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    splitter = AnswerParser(answer, schemas=FUNCTIONS, prefilled=answer.prefill)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", is_last=True)
    calls: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallBegin):
            calls[part.index] = [part.name, ""]
        elif isinstance(part, CallArguments):
            calls[part.index][1] += part.text
    said = "".join(part for part in parts if isinstance(part, str))
    return said, [(name, arguments) for name, arguments in calls.values()]


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


def spoken(answer: AnswerFormat, body: str) -> str:
    """Calls without what ends a turn: the text that a grammar has to accept."""
    assert answer.calls is not None
    body = body.partition("<|START_OF_TURN_TOKEN|>")[0]  # a turn that one template puts behind all
    end = (answer.calls.closing or answer.calls.end).split("⟩")[-1].rstrip() or "}"
    stop = body.rindex(end) + len(end)
    spaces = answer.calls.end[len(answer.calls.end.rstrip()) :]
    return body[:stop] + ("" if answer.calls.closing else spaces)


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
