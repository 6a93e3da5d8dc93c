"""`python -m engine.runtime.qnn.describe FILE.bin`: what a context binary holds, as JSON on stdout.
Read through QnnSystem and ctypes. One process for each binary: a damaged one, or a library with another layout, kills
it (see `reader`). Layout: 64-bit, system interface 1.x, binary info version 3 (QNN 2.51); others are refused."""

import ctypes
import mmap
import struct
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from engine.errors import BundleError
from engine.files import open_regular
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, QnnEncoding
from engine.runtime.qnn.environment import library_path

MAX_TEXT = 4096


class LayoutError(Exception):
    """A structure does not look as its version promises."""


def read(layout: str, address: int) -> tuple[int | float, ...]:
    """Little-endian fields (`struct` letters) at an address. A wrong address may crash the process."""
    if address == 0:
        raise LayoutError("a null pointer")
    return struct.unpack("<" + layout, ctypes.string_at(address, struct.calcsize("<" + layout)))


def unsigned(address: int) -> int:
    return int(read("I", address)[0])


def pointer(address: int) -> int:
    return int(read("Q", address)[0])


def count(address: int, limit: int, what: str) -> int:
    """An unsigned number that must not exceed `limit`."""
    value = unsigned(address)
    if value > limit:
        raise LayoutError(f"{value} {what}, more than the {limit} that are plausible")
    return value


def text(address: int, what: str) -> str:
    """A printable UTF-8 string; '' for a null pointer."""
    if address == 0:
        return ""
    bytes_there = (ctypes.string_at(address + index, 1) for index in range(MAX_TEXT))
    value = b"".join(takewhile(lambda byte: byte != b"\0", bytes_there)).decode("utf-8", "replace")
    if not value.isprintable() or "\ufffd" in value:
        raise LayoutError(f"{what} is not text")
    return value


SYSTEM_INTERFACE_MAJOR = 1
BINARY_INFO_VERSION = 3
GRAPH_INFO_VERSION = 3
TENSOR_VERSIONS = (1, 2)
GRAPH_STRIDE = 88
TENSOR_STRIDE = 144
MAX_GRAPHS = 4096
MAX_TENSORS = 4096
MAX_RANK = 8
MAX_CHANNELS = 1 << 20

DTYPES = {
    0x0008: "int8",
    0x0016: "int16",
    0x0032: "int32",
    0x0064: "int64",
    0x0108: "uint8",
    0x0116: "uint16",
    0x0132: "uint32",
    0x0164: "uint64",
    0x0216: "float16",
    0x0232: "float32",
    0x0508: "bool",
    0x0308: "int8",
    0x0316: "int16",
    0x0332: "int32",  # fixed point, signed and unsigned
    0x0408: "uint8",
    0x0416: "uint16",
    0x0432: "uint32",
}
ENCODING_DEFINED = 1
ENCODING_UNDEFINED = 0x7FFFFFFF
PER_TENSOR, PER_AXIS = 0, 1


def read_binary(library: Path, path: Path) -> BinaryInfo:
    """Everything a binary says of itself. LayoutError when library or binary have another version or no sense."""
    system = ctypes.CDLL(str(library))
    providers, number = ctypes.c_void_p(), ctypes.c_uint32()
    code = system.QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(number))
    if code != 0 or number.value == 0 or not providers.value:
        raise LayoutError(f"{library.name} offers no interface (code {code})")
    provider = pointer(providers.value)
    version = tuple(int(value) for value in read("III", provider + 16))
    if version[0] != SYSTEM_INTERFACE_MAJOR:
        dotted = ".".join(map(str, version))
        raise LayoutError(f"{library.name} has system interface {dotted}; {SYSTEM_INTERFACE_MAJOR}.x is known here")
    with open_regular(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        view = (ctypes.c_char * len(content)).from_buffer(content)
        try:
            return described(_binary_info(provider + 32, ctypes.addressof(view), len(content)))
        finally:
            del view  # a mapping cannot be closed while ctypes looks into it


def _binary_info(table: int, content: int, size: int) -> int:
    """Address of the BinaryInfo structure; it lives as long as its handle, which is never freed."""
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(pointer(table))
    get_info = ctypes.CFUNCTYPE(
        ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p
    )(pointer(table + 8))
    handle, info, info_size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    code = create(ctypes.byref(handle))
    if code != 0:
        raise LayoutError(f"no system context could be made (code {code})")
    code = get_info(handle, content, size, ctypes.byref(info), ctypes.byref(info_size))
    if code != 0 or not info.value:
        raise LayoutError(f"it is not a context binary that this library can read (code {code})")
    return info.value


def described(info: int) -> BinaryInfo:
    """What the BinaryInfo structure at an address says. LayoutError for a version or a value that is not known."""
    version = unsigned(info)
    if version != BINARY_INFO_VERSION:
        raise LayoutError(f"its description has layout {version}; layout {BINARY_INFO_VERSION} is known here")
    first, number = pointer(info + 104), count(info + 96, MAX_GRAPHS, "graphs")
    graphs = tuple(_graph(first + index * GRAPH_STRIDE) for index in range(number))
    return BinaryInfo(text(pointer(info + 16), "the build id"), graphs)


def _graph(address: int) -> BinaryGraph:
    version = unsigned(address)
    if version != GRAPH_INFO_VERSION:
        raise LayoutError(f"a graph's description has layout {version}; layout {GRAPH_INFO_VERSION} is known here")
    name = text(pointer(address + 8), "a graph's name")
    return BinaryGraph(name, _tensors(address + 16, 0), _tensors(address + 32, 1))


def _tensors(address: int, direction: int) -> tuple[BinaryTensor, ...]:
    """The list whose length is at `address` and whose pointer follows. direction: 0 inputs, 1 outputs."""
    number, first = count(address, MAX_TENSORS, "tensors of a graph"), pointer(address + 8)
    return tuple(_tensor(first + index * TENSOR_STRIDE, direction) for index in range(number))


def _tensor(address: int, direction: int) -> BinaryTensor:
    version = unsigned(address)
    if version not in TENSOR_VERSIONS:
        raise LayoutError(f"a tensor's description has layout {version}; layouts {TENSOR_VERSIONS} are known here")
    name = text(pointer(address + 16), "a tensor's name")
    kind, data_format, dtype = (int(value) for value in read("III", address + 24))
    if kind != direction:
        raise LayoutError(f"tensor {name} is of kind {kind} among those of kind {direction}")
    if dtype not in DTYPES:
        raise LayoutError(f"tensor {name} has the unknown data type {dtype:#06x}")
    rank = count(address + 80, MAX_RANK, f"dimensions of {name}")
    shape = tuple(int(size) for size in read("I" * rank, pointer(address + 88))) if rank else ()
    return BinaryTensor(name, DTYPES[dtype], shape, data_format, _encoding(address + 40, name))


def _encoding(address: int, name: str) -> QnnEncoding | None:
    defined, kind = (int(value) for value in read("II", address))
    if defined != ENCODING_DEFINED or kind == ENCODING_UNDEFINED:
        return None
    if kind == PER_TENSOR:
        scale, offset = read("fi", address + 8)
        return QnnEncoding((float(scale),), (int(offset),))
    if kind == PER_AXIS:
        axis = int(read("i", address + 8)[0])
        number = count(address + 12, MAX_CHANNELS, f"scales of {name}")
        pairs = read("fi" * number, pointer(address + 16)) if number else ()
        return QnnEncoding(tuple(map(float, pairs[::2])), tuple(map(int, pairs[1::2])), axis)
    raise LayoutError(f"tensor {name} has the unknown quantisation encoding {kind}")


REFUSED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Print the description; 3 after one sentence on stderr when the binary is refused."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        print("usage: python -m engine.runtime.qnn.describe FILE.bin", file=sys.stderr)
        return 2
    try:
        info = read_binary(library_path("QnnSystem"), Path(arguments[0]))
    except (LayoutError, BundleError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return REFUSED
    # The libraries print banners to stdout: the JSON is the last line.
    sys.stdout.write("\n" + msgspec.json.encode(info).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
