"""Files of numbers beside the graphs: their layout, their checks and their digests."""

import hashlib
import logging
import math
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import ITEM_BYTES, GraphSpec, Manifest, TensorSpec, verify_hashes
from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import ForecastSpec, RecurrentSpec, TableSpec
from engine.bundle.tensors import Array
from engine.errors import BundleError
from engine.files import confined, read_bytes, reading, write_whole

FLOAT_BYTES = 4


def check_floats(manifest: Manifest, name: str, shape: tuple[int, ...], purpose: str) -> None:
    """BundleError unless the file is listed with the size of the shape. purpose: who takes how much, for the error."""
    wanted, size = math.prod(shape) * FLOAT_BYTES, listed_bytes(manifest, name)
    if size != wanted:
        raise BundleError(f"{name} has {size} bytes, {purpose} {wanted}")


def listed_bytes(manifest: Manifest, name: str) -> int:
    """The size of a file that the manifest uses. BundleError when it is not among `files`."""
    if name not in manifest.files:
        raise BundleError(f"the manifest uses {name}, but does not list it among the bundle's files")
    return manifest.files[name].bytes


def read_floats(folder: Path, manifest: Manifest, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array in a file that was checked with `check_floats`. BundleError when it cannot be read."""
    return np.frombuffer(_content(folder, manifest, name), "<f4").reshape(shape).astype(np.float32)


def write_floats(path: Path, *arrays: NDArray[np.floating]) -> None:
    """What `read_floats` reads: little-endian float32, one array after the other."""
    path.write_bytes(b"".join(array.astype("<f4").tobytes() for array in arrays))


def _content(folder: Path, manifest: Manifest, name: str) -> bytes:
    size = manifest.files[name].bytes
    with reading(name):
        content = read_bytes(confined(folder, name), size)
    if len(content) != size:
        raise BundleError(f"{name} has {len(content)} bytes, its manifest says {size}")
    return content


WEIGHT_NAME = re.compile(r"(lm_?head[._])?weight")


def weight_input(graph: GraphSpec) -> TensorSpec | None:
    """The input that takes the head's weights, None for a graph that holds its own."""
    return next((tensor for tensor in graph.inputs if WEIGHT_NAME.fullmatch(tensor.name)), None)


def check_head_weight(manifest: Manifest) -> None:
    """BundleError unless every such input is [vocabulary, hidden], or turned, and the listed file is of its size."""
    taken = {graph.name: tensor for graph in manifest.graphs if (tensor := weight_input(graph)) is not None}
    name = manifest.head_weight
    if not taken and name:
        raise BundleError(f"head_weight names {name}, but no graph takes the LM head's weights as an input")
    if not taken:
        return
    if not name:
        graph = next(iter(taken))
        raise BundleError(f"graph {graph} takes the LM head's weights as an input, head_weight names no file")
    size, first = listed_bytes(manifest, name), next(iter(taken.values()))
    for graph, tensor in taken.items():
        _check_form(manifest, graph, tensor)
        if (tensor.dtype, tensor.shape) != (first.dtype, first.shape):
            raise BundleError(f"graphs take the LM head's weights in several forms: {_form(first)} and {_form(tensor)}")
    wanted = math.prod(map(int, first.shape)) * ITEM_BYTES[first.dtype]
    if size != wanted:
        raise BundleError(f"{name} has {size} bytes, {first.name} {_form(first)} takes {wanted}")


def _check_form(manifest: Manifest, graph: str, tensor: TensorSpec) -> None:
    model, long = manifest.model, [size for size in tensor.shape if size != 1]
    is_known = len(long) == 2 and all(isinstance(size, int) for size in long) and tensor.dtype in ITEM_BYTES
    if not is_known or model.vocab not in long or (model.hidden and model.hidden not in long):
        raise BundleError(
            f"graph {graph} takes {tensor.name} as {_form(tensor)}; the LM head's weights are "
            f"[{model.vocab}, {model.hidden or 'hidden'}] here"
        )


def _form(tensor: TensorSpec) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def read_head_weight(folder: Path, manifest: Manifest) -> Array | None:
    """The weights, in the shape of the input, None for a bundle whose graphs hold their own. BundleError."""
    check_head_weight(manifest)
    if not manifest.head_weight:
        return None
    tensor = next(tensor for graph in manifest.graphs if (tensor := weight_input(graph)) is not None)
    content = _content(folder, manifest, manifest.head_weight)
    return np.frombuffer(content, np.dtype(tensor.dtype)).reshape([int(dim) for dim in tensor.shape])


EMBEDDING_FILE = "embedding_weights.raw"


def check_table(manifest: Manifest, spec: TableSpec) -> None:
    """BundleError unless the file is listed, and holds a row for every token at least."""
    item = ITEM_BYTES.get(spec.dtype)
    if item is None or np.dtype(spec.dtype).kind not in "fu":
        raise BundleError(f"{spec.file} is said to hold {spec.dtype}; floats, uint8 or uint16 are expected")
    if spec.dtype.startswith("uint") and (spec.scale is None or spec.zero_point is None):
        raise BundleError(f"{spec.file} holds {spec.dtype}, but the manifest tells no scale for it")
    size, row = listed_bytes(manifest, spec.file), spec.width * item
    if size % row or size < manifest.model.vocab * row:
        raise BundleError(
            f"{spec.file} has {size} bytes; {manifest.model.vocab} tokens or more of {spec.width} {spec.dtype} are "
            f"multiples of {row}, at least {manifest.model.vocab * row}"
        )


CONV_WEIGHTS = "conv_weights.f32"


def conv_shape(spec: RecurrentSpec) -> tuple[int, int, int]:
    """[R, C, W], with more columns for Mamba2."""
    return len(spec.layers), spec.channels, spec.columns


def check_conv_weights(manifest: Manifest) -> None:
    """BundleError unless a model with recurrent layers, and no other, has a listed file of the size it wants."""
    name, spec = manifest.conv_weights, manifest.model.recurrent
    if bool(name) != (spec is not None):
        raise BundleError(f"a model {'without' if spec is None else 'with'} recurrent layers has conv_weights {name!r}")
    if spec is not None:
        check_floats(manifest, name, conv_shape(spec), "the model's convolutions take")


def read_conv_weights(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """Weights [R, C, W]. BundleError when the file is not what the model wants."""
    check_conv_weights(manifest)
    assert manifest.model.recurrent is not None
    weights = read_floats(folder, manifest, manifest.conv_weights, conv_shape(manifest.model.recurrent))
    if not np.isfinite(weights).all():
        raise BundleError(f"{manifest.conv_weights} holds numbers that are not finite")
    return weights


# real = code * scale, one scale for each channel
KV_SCALES = "kv_scales.f32"
ROUNDED = "int8"  # the type of caches that have scales
LEAST, MOST = 1e-30, 1e30  # so that a scale and what it is divided into stay finite


def scales_shape(model: ModelSpec) -> tuple[int, int, int, int]:
    """[L, 2, K, D]."""
    return len(model.attention_layers), 2, model.kv_heads, model.head_dim


def check_kv_scales(manifest: Manifest) -> None:
    """BundleError unless int8 caches, and no others, have a listed file of the size that the model wants."""
    name, is_rounded = manifest.kv_scales, manifest.kv_dtype == ROUNDED
    if bool(name) != is_rounded:
        raise BundleError(f"caches of {manifest.kv_dtype} {'need' if is_rounded else 'have no'} kv_scales")
    if is_rounded:
        check_floats(manifest, name, scales_shape(manifest.model), "the model's cache scales take")


def read_kv_scales(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """Scales [L, 2, K, D] of int8 caches. BundleError when the file is not what the model wants."""
    check_kv_scales(manifest)
    scales = read_floats(folder, manifest, manifest.kv_scales, scales_shape(manifest.model))
    wrong = scales[~((scales >= LEAST) & (scales <= MOST))]  # NaN is in no range
    if wrong.size:
        raise BundleError(f"{manifest.kv_scales} has a scale of {wrong[0]}; it must be from {LEAST} to {MOST}")
    return scales


# Where keys and values are stored in another basis than the checkpoint's: stored = key * row 0, rows 1 to D @ value.
HEAD_BASIS = "head_basis.f32"


def basis_shape(model: ModelSpec) -> tuple[int, int, int, int]:
    """[L, K, 1 + D, D]."""
    return len(model.attention_layers), model.kv_heads, 1 + model.head_dim, model.head_dim


def check_head_basis(manifest: Manifest) -> None:
    """BundleError unless the file, where there is one, is listed and has the size that the model wants."""
    if manifest.head_basis:
        check_floats(manifest, manifest.head_basis, basis_shape(manifest.model), "the model's heads take")


def read_head_basis(folder: Path, manifest: Manifest) -> NDArray[np.float32] | None:
    """[L, K, 1 + D, D]; None where keys and values are those of the checkpoint. BundleError for a wrong file."""
    if not manifest.head_basis:
        return None
    check_head_basis(manifest)
    return read_floats(folder, manifest, manifest.head_basis, basis_shape(manifest.model))


MAGIC = 0xC0DE
_HEADER = struct.Struct("<IIBxHHH")  # tensors, magic, type, heads, head size, columns


@dataclass(frozen=True, slots=True)
class ForecastPrefix:
    """keys [L, K, 1, D, columns] and values [L, K, 1, columns, D], as caches have them."""

    keys: NDArray[np.generic]
    values: NDArray[np.generic]

    @property
    def columns(self) -> int:
        return int(self.keys.shape[-1])


def read_forecast_prefix(folder: Path, spec: ForecastSpec, model: ModelSpec, kv_dtype: str) -> ForecastPrefix:
    """BundleError names the file, and what of it is not the model's."""
    path, item = folder / spec.file, ITEM_BYTES[kv_dtype]
    size = _HEADER.size + 2 * model.layers * model.kv_heads * model.head_dim * spec.columns * item
    with reading(path):
        content = read_bytes(path, size)
    if len(content) < size:
        raise BundleError(f"{path} has {len(content)} bytes; {spec.columns} KV slots of the model's caches take {size}")
    tensors, magic, _, heads, head_dim, columns = _HEADER.unpack_from(content)
    found = {"magic": magic, "tensors": tensors, "heads": heads, "head size": head_dim, "columns": columns}
    wanted = (MAGIC, 2 * model.layers, model.kv_heads, model.head_dim, spec.columns)
    for (name, value), right in zip(found.items(), wanted, strict=True):
        if value != right:
            raise BundleError(f"{path} says {value:#x} as its {name}, it must be {right:#x}")
    lead = (model.layers, model.kv_heads, 1)
    both = np.frombuffer(content, np.dtype(kv_dtype).newbyteorder("<"), offset=_HEADER.size).reshape(2, -1)
    keys = both[0].reshape(*lead, model.head_dim, spec.columns)
    return ForecastPrefix(keys, both[1].reshape(*lead, spec.columns, model.head_dim))


log = logging.getLogger("hexserve.bundle")

FOLDER = "hashes"


def check_once(folder: Path, manifest: Manifest, memory: Path | None) -> None:
    """Compare every file's sha256 with the manifest's, unless these very files were compared before. memory: the folder
    where that is remembered, None = nowhere. BundleError names a file that differs: it would load, run and answer
    wrongly. Reads the whole bundle, so it is no work for an event loop."""
    with reading(f"the files of {folder}"):
        marker = _marker(folder, manifest, memory) if memory is not None else None
        if marker is not None and marker.is_file():
            return
        size = sum(entry.bytes for entry in manifest.files.values())
        log.info("checking the hashes of %d files, %.2f GB, once", len(manifest.files), size / 1e9)
        wrong = verify_hashes(folder, manifest)
    if wrong:
        raise BundleError(f"{wrong[0]} is damaged: its sha256 is not the manifest's; copy or compile the bundle again")
    note(marker, manifest)  # taken before the files were read: what is written meanwhile is not vouched for


def remember(folder: Path, manifest: Manifest, memory: Path) -> None:
    """Note that the files are as the manifest says: they were hashed while they were written."""
    with suppress(OSError):
        note(_marker(folder, manifest, memory), manifest)


def note(marker: Path | None, manifest: Manifest) -> None:
    """Remember what was checked. A memory that cannot be written costs time, not the answer."""
    if marker is not None:
        with suppress(OSError):
            write_whole(marker, msgspec.json.encode({"bundle": manifest.name}))


def _marker(folder: Path, manifest: Manifest, memory: Path) -> Path:
    return memory / FOLDER / f"{files_key(folder, manifest, manifest.files)}.json"


def files_key(folder: Path, manifest: Manifest, names: Iterable[str], *more: object) -> str:
    """Names the files as they lie there: whatever writes one changes its size or its time. more: what else counts."""
    listed = sorted(names)
    stamps = [(name, (folder / name).stat()) for name in listed]
    facts = (
        str(folder.resolve()),
        [(name, found.st_size, found.st_mtime_ns, found.st_ino) for name, found in stamps],
        [manifest.files[name].sha256 for name in listed],
        *more,
    )
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]
