"""Opens a checkpoint of Whisper: its network, its tensors, its special tokens and what its files say of decoding."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.bundle.specs import SpeechSpec
from engine.compile.sources.checkpoint import (
    Checkpoint,
    CheckpointView,
    Float32,
    SafetensorsCheckpoint,
    read_json,
    read_optional_json,
)
from engine.compile.sources.speech.arrays import ArrayCheckpoint
from engine.compile.sources.speech.ctranslate2 import (
    MODEL_FILE,
    as_transformers,
    config_of,
    is_model_file,
    read_variables,
)
from engine.compile.sources.text_files import TOKENIZER_FILE, load_tokenizer
from engine.errors import CompileError
from engine.files import JSON_BYTES
from engine.files import read_json as read_json_file
from engine.models.speech import SpeechNetwork, is_speech_config, read_speech

KEY_BIAS = "k_proj.bias"  # which no Whisper has
NEEDLESS = ("proj_out.weight",)  # the embedding once more
LANGUAGE_LETTERS = range(2, 4)


@dataclass(frozen=True, slots=True)
class SpeechSource:
    """decoding: what generation_config.json says, in its names. checkpoint: under transformers' names."""

    folder: Path
    network: SpeechNetwork
    checkpoint: Checkpoint
    decoding: Mapping[str, object]

    def write_text(self, folder: Path) -> tuple[TextSpec, SpeechSpec]:
        """Copy the tokenizer into a bundle's folder; its special tokens. CompileError when one is missing."""
        tokenizer = load_tokenizer(self.folder)
        spec = speech_spec(tokenizer, self.network, self.decoding)
        shutil.copyfile(self.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)
        return TextSpec(TOKENIZER_FILE, None, (spec.end,)), spec


def is_speech_folder(folder: Path) -> bool:
    """Whether a checkpoint of Whisper lies there; what is wrong with one is told when it is read in earnest."""
    try:
        config = read_json_file(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (is_speech_config(config) or is_model_file(folder / MODEL_FILE))


@contextmanager
def open_speech(folder: Path) -> Iterator[SpeechSource]:
    """The checkpoint while the context lasts. CompileError, UnsupportedModel."""
    config = read_json(folder / "config.json")
    if is_speech_config(config):
        with SafetensorsCheckpoint(folder) as checkpoint:
            decoding = {**config, **read_optional_json(folder / "generation_config.json")}
            yield SpeechSource(folder, read_speech(config), _WithKeyBias(checkpoint), decoding)
        return
    found = read_variables(folder / MODEL_FILE)
    network = read_speech(config_of(found))
    decoding = {
        "alignment_heads": config.get("alignment_heads"),
        "suppress_tokens": config.get("suppress_ids"),
        "begin_suppress_tokens": config.get("suppress_ids_begin"),
    }
    yield SpeechSource(folder, network, _WithKeyBias(ArrayCheckpoint(as_transformers(found))), decoding)


class _WithKeyBias(CheckpointView):
    """As `inner`, with a bias of zeros for keys, so that queries, keys and values can be stacked."""

    def __contains__(self, name: str) -> bool:
        return name in self.inner or name.endswith(KEY_BIAS)

    def stored_bytes(self, name: str) -> int:
        """Nothing for what is not stored."""
        return self.inner.stored_bytes(name) if name in self.inner else 0

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Zeros for what is not stored."""
        if name.endswith(KEY_BIAS) and name not in self.inner:
            return np.zeros(shape, np.float32)
        return self.inner.tensor(name, shape)


def speech_spec(tokenizer: Tokenizer, network: SpeechNetwork, decoding: Mapping[str, object]) -> SpeechSpec:
    """The ids that are looked up by their names, and what generation_config.json says. CompileError."""
    vocab = network.decoder.spec.vocab

    def named(*names: str) -> int:
        found = next((token for name in names if (token := tokenizer.token_to_id(f"<|{name}|>")) is not None), None)
        if found is None or found >= vocab:
            raise CompileError(f"{TOKENIZER_FILE} has no token <|{names[0]}|> below {vocab}")
        return found

    start, end, translate = named("startoftranscript"), named("endoftext"), named("translate")
    no_timestamps = named("notimestamps")
    transcribe, previous = named("transcribe"), named("startofprev")
    no_speech = named("nospeech", "nocaptions")
    special = {start, translate, transcribe, previous, no_speech, named("startoflm")}
    suppressed = _ids(decoding.get("suppress_tokens"), vocab, "suppress_tokens")
    return SpeechSpec(
        mels=network.mels,
        frames=network.frames,
        positions=network.positions,
        start=start,
        end=end,
        transcribe=transcribe,
        translate=translate,
        previous=previous,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        languages=_languages(tokenizer, start, min(translate, transcribe)),
        suppressed=tuple(sorted({*suppressed, *special})),
        first=_ids(decoding.get("begin_suppress_tokens"), vocab, "begin_suppress_tokens"),
        alignment=_heads(decoding.get("alignment_heads")),
    )


def _languages(tokenizer: Tokenizer, start: int, stop: int) -> dict[str, int]:
    """Codes between the token that starts a transcript and the tasks; a model of one language has none that is told."""
    found = {}
    for token in range(start + 1, stop):
        text = tokenizer.id_to_token(token) or ""
        code = text.removeprefix("<|").removesuffix("|>")
        if text == f"<|{code}|>" and len(code) in LANGUAGE_LETTERS:
            found[code] = token
    return found if len(found) > 1 else {}


def _ids(value: object, vocab: int, name: str) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else []
    if not all(isinstance(item, int) and -1 <= item < vocab for item in listed):
        raise CompileError(f"{name} must hold token ids below {vocab}")
    return tuple(item for item in listed if item >= 0)


def _heads(value: object) -> tuple[tuple[int, int], ...]:
    listed = value if isinstance(value, list) else []
    for item in listed:
        if not (
            isinstance(item, list) and len(item) == 2 and all(isinstance(part, int) and part >= 0 for part in item)
        ):
            raise CompileError("alignment_heads must hold pairs of a layer and a head")
    return tuple((int(layer), int(head)) for layer, head in listed)
