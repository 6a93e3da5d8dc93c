"""The tensors of a checkpoint, some rows of one at a time, as float32: a Hugging Face folder, or a view of another."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.errors import CompileError
from engine.files import INDEX_BYTES, JSON_BYTES, brief, one_line, open_regular, shown
from engine.files import read_json as read_json_file

Float32 = NDArray[np.float32]
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EVERYTHING = slice(None)
RELEASE_BYTES = 1 << 29  # what is read of a mapped file counts as our memory until it is opened anew
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu}
_CODE_BYTES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, **dict.fromkeys(FLOAT8, 1)}


def read_json(path: Path, limit: int = JSON_BYTES) -> dict[str, object]:
    """An object from a JSON file; CompileError names the file."""
    try:
        value = read_json_file(path, limit)
    except FileNotFoundError:
        raise CompileError(f"{path} is missing") from None
    except OSError as error:
        raise CompileError(f"{path} cannot be read: {shown(error)}") from error
    if not isinstance(value, dict):
        raise CompileError(f"{path} must hold a JSON object")
    return value


def read_optional_json(path: Path) -> dict[str, object]:
    """As `read_json`, empty when there is no such file."""
    return read_json(path) if path.exists() else {}


class Checkpoint(Protocol):
    """The tensors of a model under the names that transformers gives them."""

    def __contains__(self, name: str) -> bool: ...

    def total_bytes(self) -> int:
        """Bytes of all float tensors as stored."""

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor as stored. CompileError when there is none of that name."""

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor as stored."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """A whole tensor as float32; CompileError when it is missing or has another shape."""

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows start..stop of a matrix as float32."""

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """The same rows as blocks in the order of inputs that `form` tells, None where they are not stored as such."""
        return None

    def form(self, name: str) -> BlockForm | None:
        """What the blocks of a matrix have in common, None where it has none."""
        return None

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """CompileError unless the tensor is there with this shape and a type that can be read."""


class SafetensorsCheckpoint(Checkpoint):
    """The tensors of one folder. Use as a context manager; files stay open (mapped) meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._file_of = _tensor_files(folder)
        self._used: set[str] = set()
        self._mapped: Counter[str] = Counter()  # bytes read of each file since it was opened

    def __enter__(self) -> "SafetensorsCheckpoint":
        # Importing ml_dtypes teaches numpy the name that safetensors gives to bfloat16.
        assert ml_dtypes.bfloat16 is not None
        try:
            for name in sorted(set(self._file_of.values())) or [SINGLE_FILE]:
                path = self._folder / name
                open_regular(path).close()  # the library would wait for the writer of a pipe
                self._open(name)
            if not self._file_of:
                self._file_of = dict.fromkeys(self._files[SINGLE_FILE].keys(), SINGLE_FILE)
        except (OSError, SafetensorError, MemoryError) as error:
            self.__exit__()
            reason = shown(error) if isinstance(error, OSError) else one_line(error)
            raise CompileError(f"{name} in {self._folder} cannot be opened: {reason}") from error
        return self

    def __exit__(self, *exit_info: object) -> None:
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def total_bytes(self) -> int:
        return sum(self.stored_bytes(name) for name in self._file_of if self.type_of(name) in _ITEM_BYTES)

    def unused(self) -> list[str]:
        return sorted(set(self._file_of) - self._used)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def stored_bytes(self, name: str) -> int:
        return math.prod(self.shape(name)) * _ITEM_BYTES[self._dtype(name)]

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        return self._taken(name, _as_float32(self._file(name).get_tensor(name)))

    def rows(self, name: str, start: int, stop: int) -> Float32:
        return self._taken(name, _as_float32(self._slice(name)[start:stop]))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        if self.shape(name) != shape:
            raise CompileError(f"tensor {name} has shape {self.shape(name)}, the config makes it {shape}")
        self._dtype(name)
        self._used.add(name)

    def names(self) -> list[str]:
        return sorted(self._file_of)

    def type_of(self, name: str) -> str:
        """The type of a tensor as safetensors calls it."""
        return str(self._slice(name).get_dtype())

    def code_bytes(self, name: str) -> int:
        """Bytes of a tensor of floats or of codes."""
        return math.prod(self.shape(name)) * (_ITEM_BYTES | _CODE_BYTES).get(self.type_of(name), 0)

    def codes(self, name: str, rows: slice = EVERYTHING, columns: slice = EVERYTHING) -> NDArray[Any]:
        """Some rows, and of a matrix some columns, in the type in which they are stored; it counts as used."""
        self._used.add(name)
        if self.type_of(name) in FLOAT8:
            return np.asarray(self._bytes(name, rows).view(FLOAT8[self.type_of(name)])[..., columns])
        if len(self.shape(name)) < 2:
            return np.asarray(self._file(name).get_tensor(name))[..., columns]
        values = np.asarray(self._slice(name)[rows, columns])
        self._let_go(name, values.nbytes)
        return values

    def _bytes(self, name: str, rows: slice) -> NDArray[np.uint8]:
        """Rows of a type that numpy lacks, from the place that the file's head tells (safetensors' format)."""
        shape = self.shape(name)
        start, stop, _ = rows.indices(shape[0] if shape else 1)
        width = math.prod(shape[1:])
        with open_regular(self._folder / self._file_of[name]) as file:
            head = int.from_bytes(file.read(8), "little")
            begin = json.loads(file.read(head))[name]["data_offsets"][0]
            file.seek(8 + head + begin + start * width)
            content = file.read((stop - start) * width)
        return np.frombuffer(content, np.uint8).reshape(-1, *shape[1:])

    def _open(self, name: str) -> None:
        """Open a file, or open it anew."""
        if name in self._files:
            self._files[name].__exit__(None, None, None)
        self._files[name] = safe_open(self._folder / name, framework="numpy")
        self._mapped[name] = 0

    def _taken(self, name: str, values: Float32) -> Float32:
        """The values are a copy, so the file behind them may be let go."""
        self._let_go(name, values.nbytes)
        return finite(name, values)

    def _let_go(self, name: str, size: int) -> None:
        """So many bytes were copied: open the file of a tensor anew once they are many."""
        file = self._file_of[name]
        self._mapped[file] += size
        if self._mapped[file] >= RELEASE_BYTES:
            self._open(file)

    def _dtype(self, name: str) -> str:
        dtype = self.type_of(name)
        if dtype not in _ITEM_BYTES:
            raise CompileError(f"tensor {name} has type {dtype}; supported are {', '.join(_ITEM_BYTES)}")
        return dtype

    def _file(self, name: str) -> Any:
        if name not in self._file_of:
            raise CompileError(f"the checkpoint has no tensor {name}")
        return self._files[self._file_of[name]]

    def _slice(self, name: str) -> Any:
        try:
            return self._file(name).get_slice(name)
        except SafetensorError as error:
            raise CompileError(f"tensor {name} cannot be read: {one_line(error)}") from error


def _tensor_files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name from the index; empty for a single file, whose own header tells."""
    if (folder / SINGLE_FILE).exists():
        return {}
    if not (folder / INDEX_FILE).exists():
        raise CompileError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE} (only safetensors can be read)")
    table = read_json(folder / INDEX_FILE, INDEX_BYTES).get("weight_map")
    if not isinstance(table, Mapping) or not table:
        raise CompileError(f"{folder / INDEX_FILE} has no weight_map")
    for value in table.values():
        if not isinstance(value, str) or Path(value).name != value or not value.endswith(".safetensors"):
            raise CompileError(f"{folder / INDEX_FILE} names {brief(value)}, which is not a safetensors file beside it")
    return cast(dict[str, str], dict(table))


def finite(name: str, values: Float32) -> Float32:
    """One NaN or infinity spoils every answer, and no limit of a comparison is passed by it."""
    if not np.isfinite(values).all():
        raise CompileError(f"tensor {name} holds numbers that are not finite")
    return values


def _as_float32(array: NDArray[Any]) -> Float32:
    if array.dtype == ml_dtypes.bfloat16:
        # A bfloat16 is the upper half of a float32: a shift is several times faster than a cast.
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


class CheckpointView(Checkpoint):
    """Every method asks `inner`, under the name that `stored` tells."""

    def __init__(self, inner: Checkpoint) -> None:
        self.inner = inner

    def stored(self, name: str) -> str:
        """How `inner` calls a tensor."""
        return name

    def __contains__(self, name: str) -> bool:
        return self.stored(name) in self.inner

    def total_bytes(self) -> int:
        return self.inner.total_bytes()

    def unused(self) -> list[str]:
        return self.inner.unused()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.inner.shape(self.stored(name))

    def stored_bytes(self, name: str) -> int:
        return self.inner.stored_bytes(self.stored(name))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        return self.inner.tensor(self.stored(name), shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        return self.inner.rows(self.stored(name), start, stop)

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        return self.inner.blocks(self.stored(name), start, stop)

    def form(self, name: str) -> BlockForm | None:
        return self.inner.form(self.stored(name))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        self.inner.require(self.stored(name), shape)


class RoundedCheckpoint(CheckpointView):
    """As `inner`, with the matrices named as their rounding leaves them [outputs, inputs]."""

    def __init__(self, inner: Checkpoint, roundings: Mapping[str, Callable[[Float32], Float32]]) -> None:
        super().__init__(inner)
        self._roundings = roundings

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Rounded, if it is one of the matrices."""
        values = self.inner.tensor(name, shape)
        return self._roundings[name](values) if name in self._roundings else values


class RememberedCheckpoint(CheckpointView):
    """As `inner`; runs of rows stay in memory, up to `limit` bytes of them: changed matrices take long to make again.
    Single rows, of an embedding table, do not stay."""

    def __init__(self, inner: Checkpoint, limit: int) -> None:
        super().__init__(inner)
        self._left = limit
        self._known: dict[tuple[str, int, int], Float32] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        return self._once((name, 0, shape[0]), lambda: self.inner.tensor(name, shape))

    def rows(self, name: str, start: int, stop: int) -> Float32:
        if stop - start == 1:
            return self.inner.rows(name, start, stop)
        return self._once((name, start, stop), lambda: self.inner.rows(name, start, stop))

    def _once(self, place: tuple[str, int, int], read: Callable[[], Float32]) -> Float32:
        if place in self._known:
            return self._known[place]
        values = read()
        if values.nbytes <= self._left:
            self._left -= values.nbytes
            self._known[place] = values
        return values
