"""The bundle's text half: tokenizer, chat template and the tokens that end an answer."""

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.bundle.specs import UsualSampling
from engine.compile.sources.checkpoint import read_optional_json
from engine.errors import CompileError
from engine.files import TEMPLATE_BYTES, TOKENIZER_BYTES, brief, read_text, reading
from engine.text.answer_finding import probed_answer
from engine.text.format_table import end_marks
from engine.text.tokenizer import parsed

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
PROCESSOR_TEMPLATE = "chat_template.json"  # of older folders of models that read images


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint or bundle folder; CompileError when it is missing or damaged. It neither cuts nor
    pads, whatever the file says."""
    path = folder / TOKENIZER_FILE
    content = _text_of(path, TOKENIZER_BYTES)
    if content is None:
        raise CompileError(f"{folder} has no {TOKENIZER_FILE} (only that form of tokenizer can be served)")
    try:
        tokenizer = parsed(content)
    except ValueError as error:
        raise CompileError(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def write_text_files(source: Path, folder: Path, config: Mapping[str, object], vocab: int) -> TextSpec:
    """Copy the tokenizer, write the template beside it, and describe both. vocab: rows of the embedding; a tokenizer
    that gives larger ids is refused. Added tokens beyond them, as Gemma 3 has for images that its small models do not
    read, are left out."""
    tokenizer = load_tokenizer(source)
    largest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
    if largest >= vocab:
        raise CompileError(f"{TOKENIZER_FILE} gives token id {largest}, config.json says vocab_size {vocab}")
    settings = read_optional_json(source / TOKENIZER_CONFIG)
    template = read_template(source, settings)
    shutil.copyfile(source / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    if max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) >= vocab:
        tokenizer = _without_added(folder, vocab)
    generation = read_optional_json(source / "generation_config.json")
    declared = (generation.get("eos_token_id"), config.get("eos_token_id"))
    text = describe_text(folder, tokenizer, settings, template, declared)
    return msgspec.structs.replace(text, sampling=usual_sampling(generation))


def usual_sampling(given: Mapping[str, object]) -> UsualSampling:
    """What generation_config.json advises. What no request could ask for is left out."""
    found = UsualSampling()
    for name in UsualSampling.__struct_fields__:
        value = given.get(name)
        if isinstance(value, int | float) and isfinite(value):
            with suppress(msgspec.ValidationError):
                found = msgspec.convert({**msgspec.structs.asdict(found), name: value}, UsualSampling)
    return found


def _without_added(folder: Path, vocab: int) -> Tokenizer:
    """Take tokens that no embedding has out of a tokenizer's file: written in a prompt they are plain text then."""
    path = folder / TOKENIZER_FILE
    content = json.loads(read_text(path, TOKENIZER_BYTES))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocab]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return load_tokenizer(folder)


def describe_text(
    folder: Path, tokenizer: Tokenizer, settings: Mapping[str, object], template: str | None, declared: Iterable[object]
) -> TextSpec:
    """Write the template beside the bundle's tokenizer, and describe both. settings: as tokenizer_config.json has them.
    declared: ids that end an answer, each one or a list."""
    if template is not None:
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8", newline="\n")
    bos, eos = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
    answer = probed_answer(template, bos, eos)
    return TextSpec(
        tokenizer=TOKENIZER_FILE,
        chat_template=TEMPLATE_FILE if template is not None else None,
        stop_ids=_ends(tokenizer, end_marks(template or "", answer), declared, eos),
        bos_token=bos,
        eos_token=eos,
        add_bos=_adds_bos(tokenizer, settings, bos),
        prefix=_prefix(tokenizer),
        answer=answer,
    )


def read_template(source: Path, settings: Mapping[str, object]) -> str | None:
    """The chat template: a file of its own in either form, else that of tokenizer_config.json (text, or a list with one
    named 'default', and perhaps 'tool_use'). Beside a file of its own that for tools may lie."""
    if (text := _text_of(source / TEMPLATE_FILE)) is not None:
        return either_template(text, _text_of(source / TOOL_TEMPLATE))
    own = _declared(read_optional_json(source / PROCESSOR_TEMPLATE), PROCESSOR_TEMPLATE)
    return _declared(settings, TOKENIZER_CONFIG) if own is None else own


def _text_of(path: Path, limit: int = TEMPLATE_BYTES) -> str | None:
    """None where there is no such file."""
    with reading(path, CompileError), suppress(FileNotFoundError):
        return read_text(path, limit)
    return None


def _declared(settings: Mapping[str, object], file: str) -> str | None:
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {str(entry.get("name")): entry.get("template") for entry in value if isinstance(entry, dict)}
        value, with_tools = named.get("default"), named.get("tool_use")
        if isinstance(value, str) and isinstance(with_tools, str):
            return either_template(value, with_tools)
    if value is not None and not isinstance(value, str):
        raise CompileError(f"{file}: chat_template must be a string or a list with a 'default'")
    return value


def either_template(without: str | None, with_tools: str | None) -> str | None:
    """One template of two. Each is rendered as if it were alone: of what is around it nothing else is trimmed."""
    if without is None or with_tools is None:
        return with_tools if without is None else without
    texts = [text.removesuffix("\n") for text in (with_tools, without)]
    return f"{{% if tools %}}\n{texts[0]}{{%+ else %}}\n{texts[1]}{{%+ endif %}}"


def _ends(tokenizer: Tokenizer, marks: Iterable[str], declared: Iterable[object], eos: str | None) -> tuple[int, ...]:
    """Ids that end an answer: declared ones (int or list), the tokenizer's end token, end-of-turn marks in use."""
    found: set[int] = set()
    for value in declared:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
                found.add(item)
            elif item is not None:
                raise CompileError(f"eos_token_id must be an integer or a list of them, it is {brief(value)}")
    named = (tokenizer.token_to_id(mark) for mark in [*marks, eos] if mark)
    return tuple(sorted(found.union(identifier for identifier in named if identifier is not None)))


def _token_text(value: object) -> str | None:
    """A special token is written as text or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _adds_bos(tokenizer: Tokenizer, settings: Mapping[str, object], bos: str | None) -> bool:
    """Whether plain text starts with the BOS token: by the setting, else by what the tokenizer itself does."""
    declared = settings.get("add_bos_token")
    if isinstance(declared, bool):
        return declared and bos is not None
    identifier = tokenizer.token_to_id(bos) if bos else None
    return identifier is not None and tokenizer.encode("a").ids[:1] == [identifier]


def _prefix(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the tokenizer itself puts before a text, where that is more than BOS: GLM-4's [gMASK]<sop>."""
    written = tokenizer.encode("a")
    found = written.ids[: written.special_tokens_mask.index(0)] if 0 in written.special_tokens_mask else []
    return tuple(found) if len(found) > 1 else ()
