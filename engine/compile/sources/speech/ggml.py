"""whisper.cpp's ggml-*.bin: its tensors under the names of transformers, its sizes and its words.

Format (`whisper_model_load` of that project, little-endian): uint32 magic, eleven int32 sizes, the last the type of its
matrices; the filters of the log-mel spectrum, int32 rows and columns and their float32; int32 count of words, each
uint32 bytes and the bytes; then tensors to the end: int32 rank, int32 bytes of the name, int32 type, int32 dimensions
from the fastest on, the name, the numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.compile.sources.mapped import MappedReader
from engine.compile.sources.speech.arrays import StoredArray
from engine.errors import CompileError, UnsupportedModel
from engine.files import WHISPER_MAGIC, brief

SIZES = (
    *("vocab_size", "max_source_positions", "encoder_width", "encoder_attention_heads", "encoder_layers"),
    *("max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers", "num_mel_bins", "type"),
)
MOST_SIZE, MOST_WORDS, MOST_RANK, MOST_NAME, MOST_TENSORS = 1 << 22, 1 << 18, 4, 256, 1 << 16
_FLOATS = {0: "<f4", 1: "<f2"}

_LAYER = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
}
_WHOLE = {
    "encoder.positional_embedding": "model.encoder.embed_positions.weight",
    "decoder.positional_embedding": "model.decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "model.decoder.embed_tokens.weight",
    **{
        f"{half}.{theirs}.{part}": f"model.{half}.layer_norm.{part}"
        for half, theirs in (("encoder", "ln_post"), ("decoder", "ln"))
        for part in ("weight", "bias")
    },
    **{f"encoder.conv{n}.{part}": f"model.encoder.conv{n}.{part}" for n in (1, 2) for part in ("weight", "bias")},
}


@dataclass(frozen=True, slots=True)
class GgmlWhisper:
    """One file. sizes: by the names of `SIZES`. words: bytes of the ordinary tokens, by id. tensors: by theirs."""

    path: Path
    sizes: Mapping[str, int]
    words: tuple[bytes, ...]
    tensors: Mapping[str, StoredArray] = field(repr=False)

    def config(self) -> dict[str, object]:
        """The sizes as transformers' config.json names them."""
        if self.sizes["encoder_width"] != self.sizes["d_model"]:
            raise UnsupportedModel(f"{self.path.name}: an encoder as wide as the decoder is supported")
        sizes = dict[str, object](self.sizes)
        for half in ("encoder", "decoder"):
            if (name := f"{half}.blocks.0.mlp.0.weight") not in self.tensors:
                raise CompileError(f"{self.path} has no tensor {name}")
            sizes[f"{half}_ffn_dim"] = self.tensors[name].shape[0]
        return sizes

    def arrays(self) -> dict[str, StoredArray]:
        """The tensors under transformers' names; those that it has none for keep theirs."""
        vectors = {  # biases of convolutions lie there as columns
            name: StoredArray(array.codes.reshape(-1))
            for name, array in self.tensors.items()
            if not array.kind and name.endswith("bias") and array.codes.ndim > 1
        }
        return {_renamed(name): vectors.get(name, array) for name, array in self.tensors.items()}


def _renamed(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    half, _, rest = name.partition(".blocks.")
    layer, _, inside = rest.partition(".")
    module, _, part = inside.rpartition(".")
    return f"model.{half}.layers.{layer}.{_LAYER[module]}.{part}" if module in _LAYER else name


class GgmlReader(MappedReader):
    def model(self) -> GgmlWhisper:
        """The whole file, its tensors mapped. CompileError, UnsupportedModel."""
        if self.take(len(WHISPER_MAGIC)).tobytes() != WHISPER_MAGIC:
            raise CompileError(f"{self.path} is not a file of whisper.cpp")
        sizes = {name: self.number("i", MOST_SIZE) for name in SIZES}
        if sizes["num_mel_bins"] != (rows := self.number("i", MOST_SIZE)):
            raise self.broken(f"filters of {rows} rows for {sizes['num_mel_bins']} bands")
        self.take(4 * rows * self.number("i", MOST_SIZE))
        words = tuple(self.take(self.number("I", MOST_NAME)).tobytes() for _ in range(self.number("i", MOST_WORDS)))
        tensors: dict[str, StoredArray] = {}
        while self.place < len(self.data) and len(tensors) < MOST_TENSORS:
            name, array = self.tensor()
            if name in tensors:
                raise self.broken(f"the tensor {brief(name)} comes twice")
            tensors[name] = array
        return GgmlWhisper(self.path, sizes, words, tensors)

    def tensor(self) -> tuple[str, StoredArray]:
        """The next one, with its name."""
        rank, length, kind = self.number("i", MOST_RANK), self.number("i", MOST_NAME), self.number("i", 1 << 16)
        shape = tuple(self.number("i", MOST_SIZE) for _ in range(rank))[::-1]
        name = self.take(length).tobytes().decode("utf-8", "replace")
        if not shape or min(shape) < 1:
            raise self.broken(f"{brief(name)} has the shape {shape}")
        if kind in _FLOATS:
            dtype = np.dtype(_FLOATS[kind])
            codes = self.take(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
            return name, StoredArray(codes.view(dtype).reshape(shape))
        from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 (takes a moment)
        from gguf.quants import quant_shape_to_byte_shape  # noqa: PLC0415

        try:
            stored = quant_shape_to_byte_shape(shape, GGMLQuantizationType(kind))
        except ValueError as error:
            raise UnsupportedModel(f"{self.path}: tensor {brief(name)} cannot be read: {error}") from error
        return name, StoredArray(self.take(math.prod(stored)).reshape(stored), kind=kind)
