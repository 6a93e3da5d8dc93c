"""The text half of a Genie bundle: tokenizer, template, BOS and everything that ends an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import TOKENIZER_BYTES, shown
from engine.genie.chat_template import TEMPLATE_FILE, TOKENIZER_CONFIG, find_template
from engine.genie.config import CONFIG_FILE, GenieConfig
from engine.genie.json_fields import Fields, load_fields, load_optional
from engine.text.answer_probing import probed_answer
from engine.text.format_table import end_marks

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class GenieText:
    """What the bundle's text files say. tokenizer: path of tokenizer.json; template: Jinja text."""

    tokenizer: Path
    template: str | None
    spec: TextSpec


def read_text(folder: Path, config: GenieConfig) -> GenieText:
    """Read the text files; BundleError when the tokenizer is missing or larger than the vocabulary."""
    name = Path(config.tokenizer.replace("\\", "/")).name
    try:
        path = confined(folder, name)
    except OSError as error:
        raise BundleError(f"{CONFIG_FILE}: dialog.tokenizer.path: {shown(error)}") from error
    if not path.exists():
        raise BundleError(f"{folder} has no {name}, which {CONFIG_FILE} names as tokenizer")
    tokenizer = load_fields(path, TOKENIZER_BYTES)
    ids = token_ids(tokenizer)
    largest = max(ids.values(), default=-1)
    if config.vocabulary and largest >= config.vocabulary:
        raise BundleError(f"{path.name} gives token id {largest}, {CONFIG_FILE} says n-vocab {config.vocabulary}")
    settings = load_optional(folder / TOKENIZER_CONFIG)
    template = find_template(folder)
    names = {number: text for text, number in ids.items()}
    bos = _token_text(settings, "bos_token") or (names.get(config.bos_id) if config.bos_id is not None else None)
    eos = _token_text(settings, "eos_token")
    declared = [
        load_optional(folder / name).integers("eos_token_id") for name in ("generation_config.json", "config.json")
    ]
    answer = probed_answer(template, bos, eos)
    spoken = [*end_marks(template or "", answer), *config.stop_sequences, *([eos] if eos else [])]
    stops = {*config.eos_ids, *(number for group in declared for number in group)}
    stops |= {ids[text] for text in spoken if text in ids}
    spec = TextSpec(
        tokenizer=TOKENIZER_FILE,
        chat_template=TEMPLATE_FILE if template is not None else None,
        stop_ids=tuple(sorted(stops)),
        bos_token=bos,
        eos_token=eos or next((names[number] for number in config.eos_ids if number in names), None),
        add_bos=_adds_bos(settings, tokenizer, bos),
        answer=answer,
        stop_texts=tuple(text for text in config.stop_sequences if text and text not in ids),
    )
    return GenieText(path, template, spec)


def token_ids(tokenizer: Fields) -> dict[str, int]:
    """Token text to id of a tokenizer.json: the model's vocabulary and what was added to it."""
    vocabulary = tokenizer.group("model").values.get("vocab")
    found: dict[str, int] = {}
    if isinstance(vocabulary, Mapping):
        found |= {text: number for text, number in vocabulary.items() if isinstance(number, int)}
    elif isinstance(vocabulary, list):
        entries = [entry[0] if isinstance(entry, list) and entry else None for entry in vocabulary]
        found |= {text: number for number, text in enumerate(entries) if isinstance(text, str)}
    for entry in _entries(tokenizer.values.get("added_tokens")):
        text, number = entry.get("content"), entry.get("id")
        if isinstance(text, str) and isinstance(number, int):
            found[text] = number
    return found


def _entries(value: object) -> Iterable[Mapping[str, object]]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _token_text(settings: Fields, key: str) -> str | None:
    """A special token is written as text or as an object with `content`."""
    value = settings.values.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _adds_bos(settings: Fields, tokenizer: Fields, bos: str | None) -> bool:
    """Whether plain text starts with BOS: by the setting, else by what the tokenizer puts in front of a text."""
    if bos is None:
        return False
    declared = settings.values.get("add_bos_token")
    if isinstance(declared, bool):
        return declared
    after = tokenizer.group("post_processor")
    steps = [after.values, *_entries(after.values.get("processors"))]
    for step in steps:
        single = next(iter(_entries(step.get("single"))), {})
        special = single.get("SpecialToken")
        if isinstance(special, Mapping) and special.get("id") == bos:
            return True
    return False
