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
_ATTENTION = {"self_attention": "self_attn", "attention": "encoder_attn"}


def is_model_file(path: Path) -> bool:
    """Whether it begins as a Whisper of CTranslate2 does."""
    try:
        with open_regular(path) as stream:
            head = stream.read(64)
    except OSError:
        return False
    return len(head) > 6 and struct.unpack_from("<I", head)[0] in VERSIONS and head[6:].startswith(KIND.encode())


def read_variables(path: Path) -> dict[str, StoredArray]:
    """Every variable of a file by CTranslate2's name, mapped. CompileError, UnsupportedModel."""
    return _Reader(path).variables()


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


def as_transformers(found: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """The tensors that the network reads, with stacked matrices apart."""
    made: dict[str, StoredArray] = {}
    for half in ("encoder", "decoder"):
        for layer in range(count_layers(found, half)):
            _put_layer(made, found, f"{half}/layer_{layer}", f"model.{half}.layers.{layer}")
        _put_norm(made, found, f"{half}/layer_norm", f"model.{half}.layer_norm")
        made[f"model.{half}.embed_positions.weight"] = _of(found, f"{half}/position_encodings/encodings")
    for name in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            made[f"model.encoder.{name}.{part}"] = _of(found, f"encoder/{name}/{part}")
    made["model.decoder.embed_tokens.weight"] = _of(found, "decoder/embeddings/weight")
    return made


def config_of(found: Mapping[str, StoredArray]) -> dict[str, object]:
    """The sizes as transformers' config.json names them. CompileError when a variable is missing."""
    vocab, hidden = _of(found, "decoder/embeddings/weight").codes.shape

    def heads(half: str) -> int:
        return int(_of(found, f"{half}/num_heads").codes)

    def ffn(half: str) -> int:
        return int(_of(found, f"{half}/layer_0/ffn/linear_0/weight").codes.shape[0])

    def places(half: str) -> int:
        return int(_of(found, f"{half}/position_encodings/encodings").codes.shape[0])

    return {
        "d_model": hidden,
        "vocab_size": vocab,
        "num_mel_bins": int(_of(found, "encoder/conv1/weight").codes.shape[1]),
        "encoder_layers": count_layers(found, "encoder"),
        "decoder_layers": count_layers(found, "decoder"),
        "encoder_attention_heads": heads("encoder"),
        "decoder_attention_heads": heads("decoder"),
        "encoder_ffn_dim": ffn("encoder"),
        "decoder_ffn_dim": ffn("decoder"),
        "max_source_positions": places("encoder"),
        "max_target_positions": places("decoder"),
    }


def count_layers(found: Mapping[str, StoredArray], half: str) -> int:
    return sum(f"{half}/layer_{layer}/ffn/linear_0/weight" in found for layer in range(len(found)))


def _put_layer(made: dict[str, StoredArray], found: Mapping[str, StoredArray], old: str, new: str) -> None:
    for theirs, ours in _ATTENTION.items():
        if f"{old}/{theirs}/linear_0/weight" not in found:
            continue
        stacked: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("out_proj",))
        if theirs == "attention":
            stacked = (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))
        for index, names in enumerate(stacked):
            for part in ("weight", "bias"):
                array = _of(found, f"{old}/{theirs}/linear_{index}/{part}")
                rows = len(array.codes) // len(names)
                for place, name in enumerate(names):
                    made[f"{new}.{ours}.{name}.{part}"] = array.rows(place * rows, (place + 1) * rows)
        _put_norm(made, found, f"{old}/{theirs}/layer_norm", f"{new}.{ours}_layer_norm")
    for index, name in enumerate(("fc1", "fc2")):
        for part in ("weight", "bias"):
            made[f"{new}.{name}.{part}"] = _of(found, f"{old}/ffn/linear_{index}/{part}")
    _put_norm(made, found, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")


def _put_norm(made: dict[str, StoredArray], found: Mapping[str, StoredArray], old: str, new: str) -> None:
    made[f"{new}.weight"], made[f"{new}.bias"] = _of(found, f"{old}/gamma"), _of(found, f"{old}/beta")


def _of(found: Mapping[str, StoredArray], name: str) -> StoredArray:
    if name not in found:
        raise CompileError(f"{MODEL_FILE} has no variable {name}")
    return found[name]
