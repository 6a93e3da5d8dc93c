"""An adapter's factors, checked against the matrices of a bundle."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.adapters.named import CONFIG_FILE, TENSOR_FILE
from engine.bundle.manifest import Manifest
from engine.bundle.specs import LoraModule
from engine.errors import BundleError
from engine.files import brief, one_line, open_regular, read_object, reading

T = TypeVar("T")
MAX_RANK = 512
MAX_ALPHA = 1e6
_PLAIN = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)
# Of these only the value that changes nothing is taken; whatever else is set and not known is refused as well.
_NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "peft_type": ("LORA",),
        "bias": ("none",),
        "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others change the base model, too
    }
)
# They say how the adapter was trained or where it came from; its tensors tell which layers it changes.
_IRRELEVANT = (
    *("task_type", "base_model_name_or_path", "revision", "peft_version", "auto_mapping", "inference_mode"),
    *("lora_dropout", "runtime_config", "eva_config", "megatron_config", "megatron_core", "qalora_group_size"),
    *("layers_to_transform", "layers_pattern", "exclude_modules", "target_modules", "ensure_weight_tying"),
)
_READ = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Rank and alpha, also of single matrices by the end of their path; rslora divides by the root of the rank."""

    rank: int
    alpha: float
    is_rslora: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank_of(self, path: str) -> int:
        return next(_values_of(self.ranks, path), self.rank)

    def scale_of(self, path: str) -> float:
        """What the product of its two factors is multiplied by."""
        rank, alpha = self.rank_of(path), next(_values_of(self.alphas, path), self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rslora else rank)


def read_adapter_config(path: Path) -> AdapterConfig:
    """BundleError names the file and the key that is wrong or not supported."""
    values = read_object(path)
    _refuse_unsupported(path, values)
    return AdapterConfig(
        int(_number(path, "r", values.get("r"), MAX_RANK, is_whole=True)),
        _number(path, "lora_alpha", values.get("lora_alpha"), MAX_ALPHA),
        values.get("use_rslora") is True,
        {key: int(number) for key, number in _pattern(path, values, "rank_pattern", MAX_RANK).items()},
        _pattern(path, values, "alpha_pattern", MAX_ALPHA),
    )


def _refuse_unsupported(path: Path, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if key in _READ or key in _IRRELEVANT:
            continue
        if key in _NEUTRAL:
            if not any(value is known or value == known for known in _NEUTRAL[key]):
                raise BundleError(f"{path}: {key} = {brief(value)} is not supported")
        elif value not in (None, False, [], {}, "", 0):
            raise BundleError(f"{path}: {brief(key)[1:-1]} = {brief(value)} is not supported")
    if "peft_type" not in values:
        raise BundleError(f"{path} has no peft_type: it is no adapter in PEFT's form")
    if not isinstance(values.get("use_rslora") or False, bool):
        raise BundleError(f"{path}: use_rslora must be true or false, it is {brief(values['use_rslora'])}")


def _number(path: Path, key: str, value: object, most: float, is_whole: bool = False) -> float:
    kinds = (int,) if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= most:
        raise BundleError(
            f"{path}: {key} must be a {'whole ' * is_whole}number above 0 and up to {most:g}, it is {brief(value)}"
        )
    return float(value)


def _pattern(path: Path, values: Mapping[str, object], key: str, most: float) -> dict[str, float]:
    """PEFT takes the keys as regular expressions; here they are ends of paths, as PEFT itself writes them."""
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise BundleError(f"{path}: {key} must hold a JSON object")
    if unknown := [name for name in table if not _PLAIN.fullmatch(name)]:
        raise BundleError(f"{path}: {key} has {brief(unknown[0])}, which is no plain path of a module")
    return {
        name: _number(path, f"{key}.{name}", value, most, is_whole=key == "rank_pattern")
        for name, value in table.items()
    }


def _values_of(table: Mapping[str, T], path: str) -> Iterator[T]:
    return (value for key, value in table.items() if f".{path}".endswith(f".{key}"))


HEADER_BYTES = 16 << 20
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
Floats = NDArray[np.float32]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file; its tensors by name. Use as a context manager."""

    path: Path
    stream: BufferedReader
    entries: dict[str, _Entry]
    first_byte: int
    size: int

    @classmethod
    def open(cls, path: Path) -> "TensorFile":
        """BundleError names the file and what is wrong with its header."""
        with reading(path):
            stream = open_regular(path)
        try:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= min(HEADER_BYTES, size - _LENGTH_BYTES):
                raise BundleError(f"{path} is no safetensors file: its header would have {length} of {size} bytes")
            return cls(path, stream, _header(path, stream.read(length)), _LENGTH_BYTES + length, size)
        except BaseException:
            stream.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *exit_info: object) -> None:
        self.stream.close()

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A tensor that must have this shape, as float32. BundleError names the tensor and its shape."""
        entry = self.entries[name]
        if entry.shape != shape:
            raise BundleError(f"{self.path}: tensor {brief(name)} has shape {list(entry.shape)[:8]}, not {list(shape)}")
        if entry.dtype not in _ITEM_BYTES:
            known = ", ".join(_ITEM_BYTES)
            raise BundleError(f"{self.path}: tensor {brief(name)} has type {brief(entry.dtype)}; supported are {known}")
        start, end = entry.data_offsets
        wanted = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[entry.dtype]
        if start < 0 or end - start != wanted or self.first_byte + end > self.size:
            raise BundleError(
                f"{self.path}: tensor {brief(name)} of {wanted} bytes lies at {start} to {end} of "
                f"{self.size - self.first_byte} bytes"
            )
        self.stream.seek(self.first_byte + start)
        data = self.stream.read(wanted)
        if len(data) < wanted:
            raise BundleError(f"{self.path} has become shorter while it was read")
        values = _as_floats(data, entry.dtype).reshape(shape)
        if not np.isfinite(values).all():
            raise BundleError(f"{self.path}: tensor {brief(name)} holds numbers that are not finite")
        return values


def _header(path: Path, body: bytes) -> dict[str, _Entry]:
    try:
        table = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        table.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=_Entry) for name, raw in table.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BundleError(f"{path} is no safetensors file: {one_line(error)}") from error


def _as_floats(data: bytes, dtype: str) -> Floats:
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)


PREFIX = "base_model.model."  # PEFT's, before the path in the checkpoint
A_END, B_END = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class Factors:
    """What is added to x W^T is (x a^T) b. a: [rank, inputs]; b: [rank, outputs], every scale in it."""

    a: Floats
    b: Floats


@dataclass(frozen=True, slots=True)
class Adapter:
    """factors: by module's name and layer; matrices that it does not change are missing."""

    name: str
    factors: Mapping[tuple[str, int], Factors] = field(repr=False)

    def rank(self, module: str) -> int:
        """The highest rank of a module over all layers, 0 if it changes none of them."""
        return max((len(factors.a) for (name, _), factors in self.factors.items() if name == module), default=0)


def read_adapters(folders: Mapping[str, Path], manifest: Manifest) -> tuple[Adapter, ...]:
    """Adapters by name. BundleError for a bundle that takes none, and names the file, key or tensor at fault."""
    if folders and manifest.model.recurrent is not None:
        raise BundleError(f"{manifest.name} takes no adapters: those of recurrent layers are not implemented")
    if folders and not manifest.lora:
        raise BundleError(
            f"{manifest.name} takes no adapters: `hexserve compile --lora` makes a bundle for the CPU that does"
        )
    if manifest.name in folders:
        raise BundleError(f"the adapter {manifest.name} has the name of the model: call it something else")
    return tuple(read_adapter(name, folder, manifest) for name, folder in folders.items())


def read_adapter(name: str, folder: Path, manifest: Manifest) -> Adapter:
    """One adapter. BundleError."""
    config = read_adapter_config(folder / CONFIG_FILE)
    with TensorFile.open(folder / TENSOR_FILE) as file:
        factors = {
            (module.name, layer): _factors(file, config, module, path)
            for (module, layer), path in _places(file, manifest).items()
        }
    if not factors:
        raise BundleError(f"{folder / TENSOR_FILE} holds no adapter: it has no tensor")
    return Adapter(name, factors)


def _places(file: TensorFile, manifest: Manifest) -> dict[tuple[LoraModule, int], str]:
    """The matrices that the file's tensors are for, each with its path; every tensor must be of such a pair."""
    known = {
        module.in_layer(layer): (module, layer) for module in manifest.lora for layer in range(manifest.model.layers)
    }
    found: dict[tuple[LoraModule, int], str] = {}
    for tensor in file.entries:
        path = _path_of(tensor)
        if path not in known:
            raise BundleError(
                f"{file.path}: tensor {brief(tensor)} changes nothing that adapters of this bundle may change: "
                f"{', '.join(module.name for module in manifest.lora)}, in {manifest.model.layers} layers"
            )
        found[known[path]] = path
    for path in found.values():
        for end in (A_END, B_END):
            if PREFIX + path + end not in file.entries:
                raise BundleError(f"{file.path} has no tensor {PREFIX + path + end}")
    return found


def _path_of(tensor: str) -> str | None:
    found = re.fullmatch(rf"{re.escape(PREFIX)}(.*)\.lora_[AB]\.weight", tensor, re.DOTALL)
    return found[1] if found else None


def _factors(file: TensorFile, config: AdapterConfig, module: LoraModule, path: str) -> Factors:
    rank = config.rank_of(path)
    a = file.read(PREFIX + path + A_END, (rank, module.inputs))
    b = file.read(PREFIX + path + B_END, (module.outputs, rank))
    with np.errstate(over="ignore"):
        b *= np.float32(config.scale_of(path))
    b[: module.scaled_outputs] *= np.float32(module.scale)
    if not np.isfinite(b).all():
        raise BundleError(f"{file.path}: the scale of {brief(path)} makes its numbers too large")
    return Factors(a, np.ascontiguousarray(b.T))
