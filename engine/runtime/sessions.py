"""Sessions of onnxruntime, their bindings, and the pages of tables that they map."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.bundle.manifest import GraphSpec, Manifest
from engine.bundle.tensors import Array
from engine.config import CPU_DEVICE
from engine.errors import BundleError, StepFailed
from engine.files import confined, open_regular
from engine.runtime.integer_sums import cuts_sums
from engine.runtime.onnx_library import ort


@dataclass(slots=True)
class Binding:
    """A graph and its bound buffers, which `buffers` keeps alive."""

    name: str
    session: ort.InferenceSession
    binding: ort.IOBinding
    buffers: "list[Array | ort.OrtValue]"

    def run(self) -> None:
        """Run the graph over its buffers. StepFailed when onnxruntime raises."""
        try:
            self.session.run_with_iobinding(self.binding)
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise StepFailed(f"graph {self.name} failed: {str(error)[:300]}") from error


def run_unbound(
    name: str, session: ort.InferenceSession, outputs: Sequence[str], inputs: Mapping[str, Array]
) -> list[Array]:
    """The named outputs of a graph that runs too seldom to be bound. StepFailed when onnxruntime raises."""
    try:
        return list(session.run(outputs, inputs))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise StepFailed(f"graph {name} failed: {str(error)[:300]}") from error


Buffers = dict[str, Array | ort.OrtValue]


class SharedValues:
    """Values of buffers that many graphs are bound to: to bind one takes a tenth of the time that its address does."""

    def __init__(self) -> None:
        self._of: dict[int, ort.OrtValue] = {}  # by id() of the array, which its value keeps alive

    def of(self, array: Array) -> ort.OrtValue:
        found = self._of.get(id(array))
        if found is None:
            assert array.flags.c_contiguous
            found = self._of[id(array)] = ort.OrtValue.ortvalue_from_numpy(array)
        return found


def bind_all(
    name: str,
    session: ort.InferenceSession,
    inputs: "Mapping[str, Array] | Buffers",
    outputs: "Mapping[str, Array] | Buffers",
) -> Binding:
    """The session of a graph bound to these buffers, by the names of its tensors."""
    binding = session.io_binding()
    sides = (
        (binding.bind_input, binding.bind_ortvalue_input, inputs),
        (binding.bind_output, binding.bind_ortvalue_output, outputs),
    )
    for bind, bind_value, buffers in sides:
        for tensor, buffer in buffers.items():
            if isinstance(buffer, ort.OrtValue):
                bind_value(tensor, buffer)
                continue
            assert buffer.flags.c_contiguous, f"{tensor} is not contiguous"
            bind(tensor, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
    return Binding(name, session, binding, [*inputs.values(), *outputs.values()])


MOST_OPENERS = 4


@dataclass(frozen=True, slots=True)
class Provider:
    """What runs graphs: the device's name for people, how a file becomes a session, and how many may at once."""

    device: str
    open: Callable[[Path], ort.InferenceSession]
    openers: int = 1


def cpu_provider(threads: int, spins: bool = False, is_exact: bool = False) -> Provider:
    """onnxruntime's CPU provider; 0 threads leaves the count to it.
    spins: all sessions share one pool whose threads wait for work without sleeping, up to 40 ms long. Every CPU
    provider of the process must then be one that spins, with as many threads. Otherwise each session has its own, and
    they sleep. Either way sessions share the memory for what lies between their operators: they run in turns. is_exact:
    products with dequantised weights do not round what they multiply them with to 8 bits."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if spins:
        _open_shared_pool(threads)
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if cuts_sums(spins):
        options.add_session_config_entry("session.x64quantprecision", "1")
    if is_exact:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    _open_shared_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Opening re-lays the weights on one core each.
    openers = min(MOST_OPENERS, threads or os.cpu_count() or 1)
    return Provider(
        CPU_DEVICE, lambda path: ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]), openers
    )


@cache
def _open_shared_pool(threads: int) -> None:
    # onnxruntime refuses a second time; a draft model shares the pool.
    ort.set_global_thread_pool_sizes(threads, 1)


def has_shared_pool() -> bool:
    """Whether every session of this process must use the pool whose threads spin."""
    return _open_shared_pool.cache_info().currsize > 0


@cache
def _open_shared_memory() -> None:
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    default = -1
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(0, default, default, default))


def load_sessions(folder: Path, manifest: Manifest, provider: Provider) -> dict[str, ort.InferenceSession]:
    """A session for every graph, by name. BundleError when one cannot be loaded or is not what the manifest says."""
    with ThreadPoolExecutor(provider.openers) as openers:
        opened = openers.map(lambda graph: open_graph(folder, graph, provider), manifest.graphs)
        return dict(zip((graph.name for graph in manifest.graphs), opened, strict=True))


def open_graph(folder: Path, graph: GraphSpec, provider: Provider) -> ort.InferenceSession:
    """A session of one graph. BundleError when it cannot be loaded or is not what the manifest says."""
    try:
        path = confined(folder, graph.file)
        open_regular(path).close()  # onnxruntime would wait for the writer of a pipe
        session = provider.open(path)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise BundleError(f"graph {graph.name} cannot be loaded: {str(error)[:300]}") from error
    _check_tensors(graph, session)
    return session


def _check_tensors(graph: GraphSpec, session: ort.InferenceSession) -> None:
    """The file must have exactly the tensors its manifest names, with the same dimensions and types."""
    sides = ("input", graph.inputs, session.get_inputs()), ("output", graph.outputs, session.get_outputs())
    for side, specs, nodes in sides:
        real = {node.name: node for node in nodes}
        for spec in specs:
            node = real.pop(spec.name, None)
            if node is None:
                raise BundleError(f"graph {graph.name} has no {side} {spec.name}")
            if _dims(node.shape) != _dims(spec.shape) or ORT_TYPES.get(node.type) != spec.dtype:
                there, wanted = f"{node.type} {node.shape}", f"{spec.dtype} {list(spec.shape)}"
                raise BundleError(f"graph {graph.name} {side} {spec.name} is {there}, its manifest says {wanted}")
        if real:
            raise BundleError(f"graph {graph.name} has an unknown {side} {next(iter(real))}")


SAME_NAMES = ("float16", "int32", "int64", "bool", "int8", "uint8", "int16", "uint16", "uint32")
ORT_TYPES = {"tensor(float)": "float32", **{f"tensor({name})": name for name in SAME_NAMES}}


def _dims(shape: object) -> tuple[int | None, ...]:
    """Fixed dimensions as they are, free ones as None."""
    assert isinstance(shape, list | tuple)
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


LEAST_MAPPED = 1 << 20  # bytes; norms and biases lie in mappings of their own and are read in every step
MAPS = Path("/proc/self/maps")


class LookedUpPages:
    """The mappings of a file that onnxruntime looks rows of tables up in. Nobody writes them. On Linux alone; elsewhere
    pages stay, as the system keeps them."""

    def __init__(self, path: Path) -> None:
        self._spans = list(_mapped(path)) if sys.platform == "linux" and MAPS.is_file() else []
        self._advise = ctypes.CDLL(None).madvise if self._spans else None

    def give_back(self) -> None:
        """Let no page count as this process's; the next lookup maps those of its tokens anew. Below 1 % of a step."""
        if self._advise is None:
            return
        for address, size in self._spans:
            self._advise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _mapped(path: Path) -> Iterator[tuple[int, int]]:
    """Address and bytes of each mapping of a file (proc(5), /proc/pid/maps). Names of others may be no UTF-8."""
    for line in MAPS.read_bytes().split(b"\n"):
        span, *fields = line.split(maxsplit=5) or [b""]
        if fields[4:] != [os.fsencode(path)]:
            continue
        start, end = (int(edge, 16) for edge in span.split(b"-"))
        if end - start >= LEAST_MAPPED:
            yield start, end - start
