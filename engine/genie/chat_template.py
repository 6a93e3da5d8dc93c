"""The chat template of a Genie bundle as one Jinja text. Each release of the format keeps it in another file."""

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import BundleError
from engine.files.opening import TEMPLATE_BYTES, read_text, shown
from engine.genie.json_fields import Fields, load_optional

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
        "",
        ("<|system|>\n", "<|end|>\n"),
        ("<|user|>\n", "<|end|>\n"),
        ("<|assistant|>\n", "<|end|>\n"),
    ),
    "[INST]": Affixes("<s>", ("[INST] ", " [/INST]"), ("[INST] ", " [/INST]"), ("", "</s>")),
}


def find_template(folder: Path) -> str | None:
    """Jinja text from its own file, tokenizer_config.json, metadata, prompt.json or sample_prompt.txt, else None."""
    path = folder / TEMPLATE_FILE
    if path.exists():
        return _text(path)
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
        value = yaml.safe_load(_text(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BundleError(f"{path} is not YAML: {error}") from error
    return Fields(value if isinstance(value, Mapping) else {}, "metadata.yaml: ")


def jinja_of(affixes: Affixes) -> str:
    """A template that writes the texts around each message; other roles than the three are taken as the user's."""
    head = f"{{{{ {_quoted(affixes.start)} }}}}" if affixes.start else ""
    if affixes.default_system:
        text = "".join((affixes.system[0], affixes.default_system, affixes.system[1]))
        head += f"{{% if messages[0]['role'] != 'system' %}}{{{{ {_quoted(text)} }}}}{{% endif %}}"
    turns = "".join(
        f"{{% {word} %}}{{{{ {_quoted(before)} + message['content'] + {_quoted(after)} }}}}"
        for word, (before, after) in (
            ("if message['role'] == 'system'", affixes.system),
            ("elif message['role'] == 'assistant'", affixes.assistant),
            ("else", affixes.user),
        )
    )
    tail = f"{{% if add_generation_prompt %}}{{{{ {_quoted(affixes.assistant[0])} }}}}{{% endif %}}"
    return f"{head}{{% for message in messages %}}{turns}{{% endif %}}{{% endfor %}}{tail}"


def _quoted(text: str) -> str:
    """A Jinja string literal: it has the escapes of JSON's."""
    return json.dumps(text)


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
    sample = _text(path)
    found = next((affixes for mark, affixes in KNOWN_TURNS.items() if mark in sample), None)
    if found is None or not found.start or sample.startswith(found.start):
        return found
    return Affixes("", found.system, found.user, found.assistant)


def _text(path: Path) -> str:
    try:
        return read_text(path, TEMPLATE_BYTES)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
