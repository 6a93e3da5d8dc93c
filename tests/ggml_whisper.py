"""The tiny Whisper of random weights as a file of whisper.cpp."""

from collections.abc import Sequence
from pathlib import Path

from gguf.constants import GGMLQuantizationType

from tests.tiny_whisper import SIZES, SPOKEN, VOCAB, network
from tools.speech.ggml import F32, write_ggml


def write_tiny_ggml(
    path: Path, kind: GGMLQuantizationType = F32, words: Sequence[bytes] = SPOKEN, vocab: int = VOCAB
) -> Path:
    """The tiny one of random weights."""
    state = {f"model.{name}": value.detach().numpy() for name, value in network().model.state_dict().items()}
    return write_ggml(path, SIZES | {"vocab_size": vocab}, words, state.items(), kind)
