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
from engine.compile.sources.speech.ctranslate2 import MODEL_FILE, is_model_file, read_model
from engine.compile.sources.speech.ggml import GgmlReader
from engine.compile.sources.text_files import TOKENIZER_FILE, load_tokenizer
from engine.files import is_ggml_whisper
from engine.models.speech import SpeechNetwork, is_speech_config, is_speech_folder, read_speech
from engine.speech.special_tokens import Window, WordList, never_first, never_spoken, speech_spec, tokenizer_of

KEY_BIAS = "k_proj.bias"  # which no Whisper has
NEEDLESS = ("proj_out.weight",)  # the embedding once more


@dataclass(frozen=True, slots=True)
class SpeechSource:
    """decoding: what generation_config.json says, in its names. checkpoint: under transformers' names. tokenizer: None
    = that of the folder."""

    folder: Path
    network: SpeechNetwork
    checkpoint: Checkpoint
    decoding: Mapping[str, object]
    tokenizer: Tokenizer | None = None

    def write_text(self, folder: Path) -> tuple[TextSpec, SpeechSpec]:
        """Write the tokenizer into a bundle's folder; its special tokens. CompileError when one is missing."""
        network, tokenizer = self.network, self.tokenizer or load_tokenizer(self.folder)
        window = Window(network.mels, network.frames, network.positions)
        spec = speech_spec(tokenizer, network.decoder.spec.vocab, window, self.decoding)
        if self.tokenizer is None:
            shutil.copyfile(self.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)
        else:
            self.tokenizer.save(str(folder / TOKENIZER_FILE))
        return TextSpec(TOKENIZER_FILE, None, (spec.end,)), spec


def is_speech(folder: Path) -> bool:
    """Whether a checkpoint of Whisper lies there, a folder or a file of whisper.cpp; what is wrong with one is told
    when it is read in earnest."""
    return is_ggml_whisper(folder) or is_speech_folder(folder) or is_model_file(folder / MODEL_FILE)


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
    sizes, arrays = read_model(folder / MODEL_FILE)
    decoding = {
        "alignment_heads": config.get("alignment_heads"),
        "suppress_tokens": config.get("suppress_ids"),
        "begin_suppress_tokens": config.get("suppress_ids_begin"),
    }
    yield SpeechSource(folder, read_speech(sizes), _WithKeyBias(ArrayCheckpoint(arrays)), decoding)


def _of_whisper_cpp(path: Path) -> SpeechSource:
    """What its files do not say is as openai/whisper has it."""
    model = GgmlReader(path).model()
    words = WordList(model.words, model.sizes["vocab_size"], model.sizes["max_source_positions"], path.name)
    network, tokenizer = read_speech(model.config()), tokenizer_of(words)
    decoding = {
        "alignment_heads": alignment_heads(network.decoder.spec),
        "suppress_tokens": never_spoken(tokenizer),
        "begin_suppress_tokens": never_first(tokenizer, words.end),
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
        return self.inner.stored_bytes(name) if name in self.inner else 0

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        is_made = name.endswith(KEY_BIAS) and name not in self.inner
        return np.zeros(shape, np.float32) if is_made else self.inner.tensor(name, shape)
