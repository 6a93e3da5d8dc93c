"""Opens a checkpoint of Whisper: its network, its tensors, its special tokens and what its files say of decoding."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.bundle.model_spec import ModelSpec
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
from engine.compile.sources.speech.ggml import read_ggml
from engine.compile.sources.speech.ggml_words import (
    ENGLISH_VOCAB,
    end_of,
    never_first,
    never_spoken,
    tokenizer_of,
)
from engine.compile.sources.text_files import TOKENIZER_FILE, load_tokenizer
from engine.errors import CompileError
from engine.files import JSON_BYTES, is_ggml_whisper
from engine.files import read_json as read_json_file
from engine.models.speech import SpeechNetwork, is_speech_config, read_speech

KEY_BIAS = "k_proj.bias"  # which no Whisper has
NEEDLESS = ("proj_out.weight",)  # the embedding once more
LANGUAGE_LETTERS = range(2, 4)


@dataclass(frozen=True, slots=True)
class SpeechSource:
    """decoding: what generation_config.json says, in its names. checkpoint: under transformers' names.

    tokenizer: None = that of the folder.
    """

    folder: Path
    network: SpeechNetwork
    checkpoint: Checkpoint
    decoding: Mapping[str, object]
    tokenizer: Tokenizer | None = None

    def write_text(self, folder: Path) -> tuple[TextSpec, SpeechSpec]:
        """Write the tokenizer into a bundle's folder; its special tokens. CompileError when one is missing."""
        spec = speech_spec(self.tokenizer or load_tokenizer(self.folder), self.network, self.decoding)
        if self.tokenizer is None:
            shutil.copyfile(self.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)
        else:
            self.tokenizer.save(str(folder / TOKENIZER_FILE))
        return TextSpec(TOKENIZER_FILE, None, (spec.end,)), spec


def is_speech(folder: Path) -> bool:
    """Whether a checkpoint of Whisper lies there, a folder or a file of whisper.cpp; what is wrong with one is told
    when it is read in earnest."""
    try:
        if folder.is_file():
            return is_ggml_whisper(folder)
        config = read_json_file(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (is_speech_config(config) or is_model_file(folder / MODEL_FILE))


@contextmanager
def open_speech(folder: Path) -> Iterator[SpeechSource]:
    """The checkpoint while the context lasts. CompileError, UnsupportedModel."""
    if folder.is_file():
        yield _of_whisper_cpp(folder)
        return
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


def _of_whisper_cpp(path: Path) -> SpeechSource:
    """What its files do not say is as openai/whisper has it."""
    model = read_ggml(path)
    network, tokenizer = read_speech(model.config()), tokenizer_of(model)
    decoding = {
        "alignment_heads": alignment_heads(network.decoder.spec),
        "suppress_tokens": never_spoken(tokenizer),
        "begin_suppress_tokens": never_first(tokenizer, end_of(model)),
    }
    return SpeechSource(path, network, _WithKeyBias(ArrayCheckpoint(model.arrays())), decoding, tokenizer)


# By layers of the decoder and tokens, as published with the models.
_HEADS = {
    (4, 51_864): "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    (4, 51_865): "2.2 3.0 3.2 3.3 3.4 3.5",
    (6, 51_864): "3.3 4.7 5.1 5.5 5.7",
    (6, 51_865): "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    (12, 51_865): "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    (24, 51_865): "13.15 15.4 15.15 16.1 20.0 23.4",
    (32, 51_866): "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    (4, 51_866): "2.4 2.11 3.3 3.6 3.11 3.14",
}


def alignment_heads(spec: ModelSpec) -> list[list[int]]:
    """Pairs of a layer and a head that look at what is said; of a model that is not known, all heads of the upper half
    of its layers (openai/whisper)."""
    listed = _HEADS.get((spec.layers, spec.vocab))
    if listed is None:
        return [[layer, head] for layer in range(spec.layers // 2, spec.layers) for head in range(spec.heads)]
    return [[int(number) for number in pair.split(".")] for pair in listed.split()]


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
    # Models of English alone have tokens of languages that they never saw.
    is_english = vocab == ENGLISH_VOCAB or decoding.get("is_multilingual") is False
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
        languages={} if is_english else _languages(tokenizer, start, min(translate, transcribe)),
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
