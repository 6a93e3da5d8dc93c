"""manifest.json: a bundle describes itself completely. Written by the compiler, read by both serving processes."""

import hashlib
from enum import StrEnum
from pathlib import Path

import msgspec

from engine.errors import BundleError

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
GRAPH_NAME = r"^(?:[A-Za-z]+_)?ar(\d+)_cl(\d+)_(\d+)_of_(\d+)$"


class GraphKind(StrEnum):
    """What a graph computes, told from its tensors by `engine/genie/tensors.py`."""

    LUT = "lut"  # input_ids -> hidden
    DECODER = "decoder"  # layers, with or without the embedding in front
    DECODER_PREFILL = "decoder_prefill"  # layers; keys and values are its only outputs, so a pass of it gives no logits
    LMHEAD = "lmhead"  # hidden -> logits
    DEFAULT = "default"  # everything in one graph
    IMAGE_ENCODER = "image_encoder"
    NONE = "none"


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph input or output. A string dimension is free: 'rows', 'past', 'context' or 'logit_rows'.

    Quantised tensors: real = scale * (q - zero_point), ONNX sign.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    scale: float | None = None
    zero_point: int | None = None


class GraphSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ONNX file. `rows` (AR) and `context` (CL) are None when free; layers are absolute and inclusive."""

    name: str
    file: str
    kind: GraphKind
    part: int
    parts: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: int | None = None
    context: int | None = None
    first_layer: int | None = None
    last_layer: int | None = None


class RopeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Half-split rotary embedding: angle[position, i] = position * inverse_frequencies[i]; cos and sin times `factor`.

    The table is final: llama3, linear and longrope scaling are in it (longrope: chosen by the compiled context).
    """

    kind: str
    theta: float
    rotary_dim: int
    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


class ModelSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Geometry of the network."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope: RopeSpec
    tied_head: bool = False
    parameters: int = 0


class TextSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything needed to turn text into tokens and back. Files are relative to the bundle.

    markers: what opens and closes a part of an answer, for 'reasoning' and 'tool_call', where the template has them.
    stop_texts: what ends an answer beside `stop_ids`, where no single token stands for it.
    """

    tokenizer: str
    chat_template: str | None
    stop_ids: tuple[int, ...]
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool = False
    markers: dict[str, tuple[str, str]] = {}
    stop_texts: tuple[str, ...] = ()


class FileEntry(msgspec.Struct, frozen=True):
    """Size in bytes and sha256 (hex) of one file of the bundle."""

    bytes: int
    sha256: str


class NpuSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an NPU bundle's binaries are. Chip in Qualcomm's numbers: X Elite is soc_model 60, Hexagon v73 (htp_arch).

    binaries: file -> names of the graphs inside; several share their weights. chains: name of a `GraphSpec` -> the
    (binary, graph inside) that it runs, in order. sdk: the QNN version that made them. parity_on: what the figures
    of `Manifest.parity` were measured on. not_genie: why Genie cannot run the bundle, "" when it can.
    """

    soc_model: int
    htp_arch: int
    binaries: dict[str, tuple[str, ...]]
    chains: dict[str, tuple[tuple[str, str], ...]] = {}
    sdk: str = ""
    parity_on: str = ""
    not_genie: str = ""

    @property
    def shared(self) -> tuple[str, ...]:
        """The binaries that hold several graphs."""
        return tuple(name for name, graphs in self.binaries.items() if len(graphs) > 1)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole description. `max_context`: most tokens of one sequence; `parity`: the compiler's own check."""

    format_version: int
    name: str
    target: str
    quant: str
    split: str
    created: int
    model: ModelSpec
    graphs: tuple[GraphSpec, ...]
    kv_dtype: str
    max_context: int
    text: TextSpec
    files: dict[str, FileEntry]
    versions: dict[str, str]
    parity: dict[str, float] = {}
    source: str = ""
    npu: NpuSpec | None = None

    @property
    def is_free_shape(self) -> bool:
        """True when one graph serves every number of rows and columns (CPU bundles by default)."""
        return any(graph.rows is None for graph in self.graphs if graph.kind is not GraphKind.LMHEAD)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of key and value cache one token takes over all layers."""
        return 2 * self.model.layers * self.model.kv_heads * self.model.head_dim * ITEM_BYTES[self.kv_dtype]


ITEM_BYTES = {"float32": 4, "float16": 2, "uint16": 2, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}


def load_manifest(folder: Path) -> Manifest:
    """Read a bundle's manifest; BundleError names what is wrong with it."""
    path = folder / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST_FILE}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{path} has format {manifest.format_version}, this version reads {FORMAT_VERSION}: compile it again"
        )
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry)
    return manifest


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"manifest names a file outside the bundle: {name}")
    if not path.is_file():
        raise BundleError(f"bundle file {name} is missing from {folder}")
    if path.stat().st_size != entry.bytes:
        raise BundleError(f"bundle file {name} has {path.stat().st_size} bytes, its manifest says {entry.bytes}")


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json into the folder."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (folder / MANIFEST_FILE).write_bytes(text)


def describe_file(path: Path) -> FileEntry:
    """Size and sha256 of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


def verify_hashes(folder: Path, manifest: Manifest) -> list[str]:
    """Names of the files whose sha256 is not the manifest's (slow: reads everything)."""
    return [name for name, entry in manifest.files.items() if describe_file(folder / name).sha256 != entry.sha256]
