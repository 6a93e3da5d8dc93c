"""adapter_config.json of an adapter in PEFT's form: rank and scale of every matrix, and what is refused by name."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from engine.errors import BundleError
from engine.files.content import brief, read_json
from engine.files.opening import JSON_BYTES, shown

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
        """The rank of the matrix of this path."""
        return next(_values_of(self.ranks, path), self.rank)

    def scale_of(self, path: str) -> float:
        """What the product of its two factors is multiplied by."""
        rank = self.rank_of(path)
        alpha = next(_values_of(self.alphas, path), self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rslora else rank)


def read_adapter_config(path: Path) -> AdapterConfig:
    """BundleError names the file and the key that is wrong or not supported."""
    try:
        values = read_json(path, JSON_BYTES)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
    if not isinstance(values, dict):
        raise BundleError(f"{path} must hold a JSON object")
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
    for name in table:
        if not _PLAIN.fullmatch(name):
            raise BundleError(f"{path}: {key} has {brief(name)}, which is no plain path of a module")
    return {
        name: _number(path, f"{key}.{name}", value, most, is_whole=key == "rank_pattern")
        for name, value in table.items()
    }


def _values_of(table: Mapping[str, T], path: str) -> Iterator[T]:
    return (value for key, value in table.items() if f".{path}".endswith(f".{key}"))
