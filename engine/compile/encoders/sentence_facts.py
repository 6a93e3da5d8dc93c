"""Reading the files of sentence-transformers from a checkpoint's folder."""

from pathlib import Path

from engine.compile.checkpoint import read_json, read_optional_json
from engine.errors import CompileError
from engine.files.content import read_json as read_json_value
from engine.files.opening import JSON_BYTES, shown
from engine.models.config_fields import ConfigFields
from engine.models.encoders.sentence_files import (
    LENGTH_FILES,
    MODULES_FILE,
    PROMPTS_FILE,
    SentenceFacts,
    pooling_folder,
    read_length,
    read_pooling,
    read_prompts,
)


def read_sentence_facts(folder: Path) -> SentenceFacts:
    """What they say; what usually holds where there are none. CompileError and UnsupportedModel name the file."""
    prompts, default = read_prompts(ConfigFields(read_optional_json(folder / PROMPTS_FILE), PROMPTS_FILE))
    usual = SentenceFacts(prompts=prompts, default_prompt=default, max_tokens=_longest(folder))
    if not (folder / MODULES_FILE).exists():
        return usual
    inner, normalize = pooling_folder(_modules(folder / MODULES_FILE))
    file = f"{inner}/config.json"
    pooling = read_pooling(ConfigFields(read_json(folder / file), file))
    return SentenceFacts(pooling, normalize, usual.max_tokens, prompts, default)


def _longest(folder: Path) -> int:
    for name in LENGTH_FILES:
        if length := read_length(ConfigFields(read_optional_json(folder / name), name)):
            return length
    return 0


def _modules(path: Path) -> object:
    try:
        return read_json_value(path, JSON_BYTES)
    except OSError as error:
        raise CompileError(f"{path} cannot be read: {shown(error)}") from error
