"""An adapter's factors, checked against the matrices of a bundle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.adapters.config import AdapterConfig, read_adapter_config
from engine.adapters.named import CONFIG_FILE, TENSOR_FILE
from engine.adapters.safetensors import Floats, TensorFile
from engine.bundle.lora import LoraModule
from engine.bundle.manifest import Manifest
from engine.errors import BundleError
from engine.files.content import brief

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
        places = _places(file, manifest)
        factors = {}
        for (module, layer), path in places.items():
            factors[module.name, layer] = _factors(file, config, module, path)
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
    for end in (A_END, B_END):
        if tensor.startswith(PREFIX) and tensor.endswith(end):
            return tensor[len(PREFIX) : -len(end)]
    return None


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
