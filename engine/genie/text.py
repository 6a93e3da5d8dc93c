"""The text half of a Genie bundle: tokenizer, template, BOS, what ends an answer, and the prompt to try it with."""

import importlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.bundle.specs import SampleSpec
from engine.errors import BundleError
from engine.files import TEMPLATE_BYTES, TOKENIZER_BYTES, confined, is_regular, read_text, shown
from engine.genie.config import CONFIG_FILE, Fields, GenieConfig, load_fields, load_optional
from engine.runtime.qnn.binary import BinaryInfo, BinaryTensor
from engine.text.answer_finding import probed_answer
from engine.text.format_table import end_marks
from engine.text.rendering import read_template
from engine.text.tokenizer import Tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Affixes:
    """Texts around each role's content."""

    start: str
    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    default_system: str = ""


# sample_prompt.txt shows one filled-in turn; these marks tell which family wrote it.
KNOWN_TURNS = {
    "<|start_header_id|>": Affixes(
        "<|begin_of_text|>",
        ("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ),
    "<|im_start|>": Affixes(
        "",
        ("<|im_start|>system\n", "<|im_end|>\n"),
        ("<|im_start|>user\n", "<|im_end|>\n"),
        ("<|im_start|>assistant\n", "<|im_end|>\n"),
    ),
    "<|user|>\n": Affixes(
        "", ("<|system|>\n", "<|end|>\n"), ("<|user|>\n", "<|end|>\n"), ("<|assistant|>\n", "<|end|>\n")
    ),
    "[INST]": Affixes("<s>", ("[INST] ", " [/INST]"), ("[INST] ", " [/INST]"), ("", "</s>")),
}


def find_template(folder: Path) -> str | None:
    """Jinja text from its own file, tokenizer_config.json, metadata, prompt.json or sample_prompt.txt, else None."""
    path = folder / TEMPLATE_FILE
    if path.exists():
        return read_template(path)
    value = load_optional(folder / TOKENIZER_CONFIG).values.get("chat_template")
    if isinstance(value, list):
        entries = (entry for entry in value if isinstance(entry, dict))
        value = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    if isinstance(value, str):
        return value
    affixes = _from_metadata(read_metadata(folder)) or _from_prompt(load_optional(folder / "prompt.json"))
    affixes = affixes or _from_sample(folder / "sample_prompt.txt")
    return jinja_of(affixes) if affixes else None


def read_metadata(folder: Path) -> Fields:
    """metadata.json or, where PyYAML is installed, metadata.yaml; empty when there is neither."""
    path = folder / "metadata.yaml"
    if (folder / "metadata.json").is_file() or not path.is_file() or importlib.util.find_spec("yaml") is None:
        return load_optional(folder / "metadata.json")
    yaml = importlib.import_module("yaml")
    try:
        value = yaml.safe_load(read_template(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BundleError(f"{path} is not YAML: {error}") from error
    return Fields(value if isinstance(value, Mapping) else {}, "metadata.yaml")


def jinja_of(affixes: Affixes) -> str:
    """A template that writes the texts around each message; other roles than the three are taken as the user's."""
    quoted = json.dumps  # Jinja's string literals have the escapes of JSON's
    head = f"{{{{ {quoted(affixes.start)} }}}}" if affixes.start else ""
    if affixes.default_system:
        text = "".join((affixes.system[0], affixes.default_system, affixes.system[1]))
        head += f"{{% if messages[0]['role'] != 'system' %}}{{{{ {quoted(text)} }}}}{{% endif %}}"
    turns = "".join(
        f"{{% {word} %}}{{{{ {quoted(before)} + message['content'] + {quoted(after)} }}}}"
        for word, (before, after) in (
            ("if message['role'] == 'system'", affixes.system),
            ("elif message['role'] == 'assistant'", affixes.assistant),
            ("else", affixes.user),
        )
    )
    tail = f"{{% if add_generation_prompt %}}{{{{ {quoted(affixes.assistant[0])} }}}}{{% endif %}}"
    return f"{head}{{% for message in messages %}}{turns}{{% endif %}}{{% endfor %}}{tail}"


def _from_metadata(metadata: Fields) -> Affixes | None:
    group = metadata.group("genie").group("chat_template")
    if not group.has("user_prefix"):
        return None

    def pair(role: str) -> tuple[str, str]:
        return group.text(f"{role}_prefix", ""), group.text(f"{role}_suffix", "")

    default = group.text("default_system_prompt", "")
    return Affixes(group.text("global_prefix", ""), pair("system"), pair("user"), pair("assistant"), default)


def _from_prompt(prompt: Fields) -> Affixes | None:
    """GenieAPIService's prompt.json: a text for each role with `string` where the content goes."""
    if not prompt.has("prompt_user"):
        return None

    def pair(role: str) -> tuple[str, str]:
        before, _, after = prompt.text(f"prompt_{role}", "").partition("string")
        return before, after

    assistant = (prompt.text("prompt_start", pair("assistant")[0]), pair("assistant")[1])
    return Affixes("", pair("system"), pair("user"), assistant)


def _from_sample(path: Path) -> Affixes | None:
    if not path.exists():
        return None
    sample = read_template(path)
    found = next((affixes for mark, affixes in KNOWN_TURNS.items() if mark in sample), None)
    if found is None or not found.start or sample.startswith(found.start):
        return found
    return Affixes("", found.system, found.user, found.assistant)


TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class GenieText:
    """What the bundle's text files say. tokenizer: path of tokenizer.json, or its content; template: Jinja text."""

    tokenizer: Path | str
    template: str | None
    spec: TextSpec


def read_genie_text(folder: Path, config: GenieConfig) -> GenieText:
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
    pairs: list[tuple[object, object]] = []
    if isinstance(vocabulary, Mapping):
        pairs += vocabulary.items()
    elif isinstance(vocabulary, list):
        pairs += ((entry[0] if isinstance(entry, list) and entry else None, i) for i, entry in enumerate(vocabulary))
    added = _entries(tokenizer.values.get("added_tokens"))
    pairs += ((entry.get("content"), entry.get("id")) for entry in added)
    return {text: number for text, number in pairs if isinstance(text, str) and isinstance(number, int)}


def _entries(value: object) -> Iterable[Mapping[str, object]]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _token_text(settings: Fields, key: str) -> str | None:
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
    firsts = [next(iter(_entries(step.get("single"))), {}).get("SpecialToken") for step in steps]
    return any(isinstance(special, Mapping) and special.get("id") == bos for special in firsts)


SAMPLE_TOKENS = 24  # enough to tell sense from noise, few enough for a start
SAMPLE_FILE = "sample_prompt.txt"
TEXT_INPUT = "TEXT_INPUT"  # how the name of a pipeline's input of text ends
NEAR = 1e-4  # of a scale: metadata rounds


def sample_ids(folder: Path, text: TextSpec) -> tuple[int, ...]:
    """The first tokens of the folder's sample prompt, () where it has none that can be read."""
    for name in _sample_files(read_metadata(folder)):
        try:
            path = confined(folder, name)
            if not is_regular(path) or not is_regular(folder / TOKENIZER_FILE):
                continue
            prompt = read_text(path, TEMPLATE_BYTES)
        except (OSError, UnicodeError):
            continue
        return Tokenizer.load(folder, text).encode(prompt, allow_special=True)[:SAMPLE_TOKENS]
    return ()


def _sample_files(metadata: Fields) -> Iterator[str]:
    listed = metadata.group("genie").values.get("sample_inputs")
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, Mapping) and str(item.get("node_io")).endswith(TEXT_INPUT) and item.get("file"):
            yield str(item["file"])
    yield SAMPLE_FILE


def sample_of(folder: Path, text: TextSpec, infos: Mapping[str, BinaryInfo], vocabulary: int) -> SampleSpec | None:
    """What to try the folder with, and a sentence where metadata.json says otherwise of tensors than the binaries."""
    found = list(contradictions(read_metadata(folder), infos))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    problems = (f"metadata.json does not fit its binaries: {found[0]}{more}",) if found else ()
    sample = SampleSpec(tuple(token for token in sample_ids(folder, text) if token < vocabulary), problems=problems)
    return sample if sample != SampleSpec() else None


def contradictions(metadata: Fields, infos: Mapping[str, BinaryInfo]) -> Iterator[str]:
    """Sentences. Entries are named for a graph, or for a binary with one graph; others are passed over."""
    graphs = {graph.name: graph for info in infos.values() for graph in info.graphs}
    graphs |= {name: info.graphs[0] for name, info in infos.items() if len(info.graphs) == 1}
    files = metadata.group("model_files")
    for name in files.values:
        graph = graphs.get(name)
        if graph is None:
            continue
        real = {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}
        for side in ("inputs", "outputs"):
            tensors = files.group(name).group(side)
            for told in tensors.values:
                tensor = real.get(re.sub(r"[/.]", "_", told))
                if tensor is not None and (said := _said_otherwise(tensors.group(told), tensor)):
                    yield f"tensor {told} of {name} {said}"


def _said_otherwise(told: Fields, real: BinaryTensor) -> str:
    shape = told.values.get("shape")
    if isinstance(shape, list) and [size for size in shape if size != 1] != [size for size in real.shape if size != 1]:
        return f"is said to be {shape}, it is {list(real.shape)}"
    parameters = told.group("quantization_parameters").values
    scale, zero = parameters.get("scale"), parameters.get("zero_point")
    if real.encoding is None or len(real.encoding.scales) != 1 or not isinstance(scale, int | float):
        return ""
    if abs(scale - real.encoding.scales[0]) > NEAR * real.encoding.scales[0] or zero != -real.encoding.offsets[0]:
        own = f"{real.encoding.scales[0]:.6g} and {-real.encoding.offsets[0]}"
        return f"is said to have the scale {scale:.6g} and the zero point {zero}, it has {own}"
    return ""
