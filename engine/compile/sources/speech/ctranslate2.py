"""CTranslate2's model.bin: its tensors under the names of transformers, and the sizes that follow from them.

Format (python/ctranslate2/specs/model_spec.py of that project, little-endian): uint32 version, the name of the model's
kind, uint32 revision, uint32 count; for each variable its name, uint8 rank, uint32 dimensions, uint8 type, uint32
bytes, the bytes; then uint32 count of aliases, each two names. A name is uint16 bytes with the final zero, the bytes.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from engine.compile.sources.mapped import MappedReader
from engine.compile.sources.speech.arrays import StoredArray
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief, open_regular

MODEL_FILE = "model.bin"
KIND, VERSIONS = "WhisperSpec", range(4, 7)
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}  # 5: bfloat16
MOST_VARIABLES, MOST_RANK, MOST_NAME = 1 << 16, 8, 1024
_STACKS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_NORMS = {"self_attention": "self_attn_layer_norm", "attention": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}


def is_model_file(path: Path) -> bool:
    """Whether it begins as a Whisper of CTranslate2 does."""
    try:
        with open_regular(path) as stream:
            head = stream.read(64)
    except OSError:
        return False
    return len(head) > 6 and struct.unpack_from("<I", head)[0] in VERSIONS and head[6:].startswith(KIND.encode())


def read_model(path: Path) -> tuple[dict[str, object], dict[str, StoredArray]]:
    """The sizes as transformers' config.json names them, and the tensors, mapped, under transformers' names.
    CompileError, UnsupportedModel."""
    found = _Reader(path).variables()
    return _config_of(found), _as_transformers(found)


class _Reader(MappedReader):
    def variables(self) -> dict[str, StoredArray]:
        """Those of the whole file; quantised ones with their scales."""
        version = self.number("I")
        if version not in VERSIONS:
            raise UnsupportedModel(f"{self.path} has version {version}, read are {VERSIONS[0]} to {VERSIONS[-1]}")
        if (kind := self.text()) != KIND:
            raise UnsupportedModel(f"{self.path} holds a {brief(kind)}, read is {KIND}")
        self.number("I")
        found = dict(self.variable() for _ in range(self.number("I", MOST_VARIABLES)))
        for _ in range(self.number("I", MOST_VARIABLES)):
            alias, name = self.text(), self.text()
            if name not in found:
                raise self.broken(f"the alias {brief(alias)} stands for no variable")
            found[alias] = found[name]
        scales = {name: found.pop(name) for name in list(found) if name.endswith("_scale")}
        for name, scale in scales.items():
            whole = name.removesuffix("_scale")
            if whole in found:
                found[whole] = StoredArray(found[whole].codes, scale.floats())
        return found

    def variable(self) -> tuple[str, StoredArray]:
        """The next one, with its name."""
        name = self.text()
        shape = tuple(self.number("I") for _ in range(self.number("B", MOST_RANK)))
        kind, size = self.number("B"), self.number("I")
        if kind not in DTYPES:
            raise UnsupportedModel(f"{self.path}: {brief(name)} has the unknown type {kind}")
        dtype = np.dtype(DTYPES[kind])
        items = int(np.prod(shape, dtype=np.int64))
        if size != items * dtype.itemsize:
            raise self.broken(f"{brief(name)} has {size} bytes for {items} numbers")
        return name, StoredArray(self.take(size).view(dtype).reshape(shape))

    def text(self) -> str:
        return self.take(self.number("H", MOST_NAME)).tobytes()[:-1].decode("utf-8", "replace")


def _as_transformers(found: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """The tensors that the network reads, with stacked matrices apart."""
    made: dict[str, StoredArray] = {}
    for half in ("encoder", "decoder"):
        for layer in range(_count_layers(found, half)):
            _put_layer(made, found, f"{half}/layer_{layer}", f"model.{half}.layers.{layer}")
        _put_norm(made, found, f"{half}/layer_norm", f"model.{half}.layer_norm")
        made[f"model.{half}.embed_positions.weight"] = _of(found, f"{half}/position_encodings/encodings")
    for name in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            made[f"model.encoder.{name}.{part}"] = _of(found, f"encoder/{name}/{part}")
    made["model.decoder.embed_tokens.weight"] = _of(found, "decoder/embeddings/weight")
    return made


def _config_of(found: Mapping[str, StoredArray]) -> dict[str, object]:
    vocab, hidden = _of(found, "decoder/embeddings/weight").codes.shape
    bands = _of(found, "encoder/conv1/weight").codes.shape[1]
    sizes: dict[str, object] = {"d_model": hidden, "vocab_size": vocab, "num_mel_bins": bands}
    for half, places in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        sizes |= {
            f"{half}_layers": _count_layers(found, half),
            f"{half}_attention_heads": int(_of(found, f"{half}/num_heads").codes),
            f"{half}_ffn_dim": _of(found, f"{half}/layer_0/ffn/linear_0/weight").codes.shape[0],
            places: _of(found, f"{half}/position_encodings/encodings").codes.shape[0],
        }
    return sizes


def _count_layers(found: Mapping[str, StoredArray], half: str) -> int:
    return sum(f"{half}/layer_{layer}/ffn/linear_0/weight" in found for layer in range(len(found)))


def _put_layer(made: dict[str, StoredArray], found: Mapping[str, StoredArray], old: str, new: str) -> None:
    parts = [theirs for theirs in _NORMS if theirs == "ffn" or f"{old}/{theirs}/linear_0/weight" in found]
    for theirs, names in _STACKS.items():
        for kind in ("weight", "bias") if theirs.partition("/")[0] in parts else ():
            array = _of(found, f"{old}/{theirs}/{kind}")
            rows = len(array.codes) // len(names)
            for place, name in enumerate(names):
                made[f"{new}.{name}.{kind}"] = array.rows(place * rows, (place + 1) * rows)
    for theirs in parts:
        _put_norm(made, found, f"{old}/{theirs}/layer_norm", f"{new}.{_NORMS[theirs]}")


def _put_norm(made: dict[str, StoredArray], found: Mapping[str, StoredArray], old: str, new: str) -> None:
    made[f"{new}.weight"], made[f"{new}.bias"] = _of(found, f"{old}/gamma"), _of(found, f"{old}/beta")


def _of(found: Mapping[str, StoredArray], name: str) -> StoredArray:
    if name not in found:
        raise CompileError(f"{MODEL_FILE} has no variable {name}")
    return found[name]
