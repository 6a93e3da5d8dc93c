"""Files of whisper.cpp made of a Whisper's tensors, as its converters write them."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.compile.sources.speech.ggml import SIZES
from engine.compile.sources.speech.source import KEY_BIAS, open_speech
from engine.speech.log_mel import filters

MAGIC = 0x67676D6C
ORDINARY = 50_257  # tokens that are words
F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
# How a file's head numbers them (ggml_ftype): behind the version of the blocks, times 1,000, where there are some.
NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2002, "Q4_1": 2003, "Q8_0": 2007, "Q5_0": 2008, "Q5_1": 2009}
NAMES = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
    "layer_norm": "ln",
    "embed_tokens": "token_embedding",
}
Floats = NDArray[np.float32]


def write_ggml(
    path: Path,
    config: Mapping[str, Any],
    words: Sequence[bytes],
    tensors: Iterable[tuple[str, Floats]],
    kind: GGMLQuantizationType = F32,
) -> Path:
    """config: sizes as transformers names them. words: by id. tensors: under transformers' names. kind: of matrices."""
    told = {"encoder_width": config["d_model"], **config, "type": NUMBERS[kind.name]}
    sizes = [told[name] for name in SIZES]
    bands = filters(config["num_mel_bins"]).astype("<f4")
    with path.open("wb") as file:
        file.write(struct.pack("<I11i", MAGIC, *sizes) + struct.pack("<2i", *bands.shape) + bands.tobytes())
        file.write(struct.pack("<i", len(words)))
        for word in words:
            file.write(struct.pack("<I", len(word)) + word)
        for name, value in tensors:
            file.write(_tensor(_renamed(name), value, kind))
    return path


def write_published(folder: Path, file: Path, kind: GGMLQuantizationType = F16) -> Path:
    """A Whisper of CTranslate2 or of the Hugging Face hub as such a file; `file` is given back."""
    spelled = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    with open_speech(folder) as source:
        network, names = source.network, source.checkpoint.unused()
        spec = network.decoder.spec
        heard = (network.positions, spec.hidden, network.encoder_heads, network.encoder_layers)
        written = (network.decoder.max_position, spec.hidden, spec.heads, spec.layers, network.mels)
        config = dict(zip(SIZES, (spec.vocab, *heard, *written), strict=False))  # behind which is the type
        stored = [name for name in names if not name.endswith(KEY_BIAS)]
        tensors = [(name, source.checkpoint.tensor(name, source.checkpoint.shape(name))) for name in stored]
    return write_ggml(file, config, words_of(spelled), tensors, kind)


def words_of(spelled: Mapping[str, int]) -> list[bytes]:
    """By id; as published they are spelled in letters of GPT-2's."""
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
    by_id = {number: bytes(map(letters.__getitem__, word)) for word, number in spelled.items() if number < ORDINARY}
    return [by_id[number] for number in range(ORDINARY)]


def _tensor(name: str, value: Floats, kind: GGMLQuantizationType) -> bytes:
    """Vectors, positions and what a convolution is not multiplied with stay float32; its matrices are never blocks."""
    if name.startswith("encoder.conv"):
        value = value[:, None] if name.endswith("bias") else value
        kind = F16 if kind not in (F32, F16) else kind
    is_plain = value.ndim < 2 or "positional" in name or name.endswith("bias")
    stored = F32 if is_plain or value.shape[-1] % GGML_QUANT_SIZES[kind][0] else kind
    content = gguf.quantize(value, stored)
    head = struct.pack("<3i", value.ndim, len(name), int(stored))
    return head + struct.pack(f"<{value.ndim}i", *value.shape[::-1]) + name.encode() + content.tobytes()


def _renamed(name: str) -> str:
    half, _, rest = name.removeprefix("model.").partition(".")
    if rest.startswith("embed_positions"):
        return f"{half}.positional_embedding"
    if rest.startswith("layers."):
        _, layer, inside = rest.split(".", 2)
        module, _, part = inside.rpartition(".")
        return f"{half}.blocks.{layer}.{NAMES[module]}.{part}"
    module, _, part = rest.rpartition(".")
    return f"{half}.{'ln_post' if (half, module) == ('encoder', 'layer_norm') else NAMES.get(module, module)}.{part}"
