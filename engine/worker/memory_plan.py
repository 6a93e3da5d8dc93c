"""What a bundle is going to take of main memory, reckoned before any of it is loaded. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.bundle.encoder import encoder_rows
from engine.bundle.float_file import FLOAT_BYTES
from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable
from engine.config import EngineConfig
from engine.worker.recurrent import STATES_EACH

GIGABYTE = 1e9
LEAST_SHOWN = 1e6


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes: of weights as stored, and the most of keys and values (`columns` tokens), of states and of what the host
    memory for prefixes holds."""

    weights: int
    columns: int
    caches: int
    sequences: int
    states: int
    prefixes: int

    @property
    def together(self) -> int:
        """Bytes of all."""
        return self.weights + self.caches + self.states + self.prefixes

    def __str__(self) -> str:
        return f"{', '.join(self._parts())}, together at most {_size(self.together)}"

    def _parts(self) -> Iterator[str]:
        yield f"weights {_size(self.weights)}"
        yield f"keys and values of {self.columns:,} tokens {_size(self.caches)}"
        if self.states:
            yield f"states of {self.sequences:,} sequences {_size(self.states)}"
        if self.prefixes:
            yield f"{'snapshots of states' if self.states else 'host KV cache'} {_size(self.prefixes)}"


def plan_memory(manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> MemoryPlan:
    """For the graphs of the manifest that are to be loaded. What onnxruntime itself needs is not in it."""
    # With fused graphs a pool is so many whole caches, and a pass spans one of them.
    columns = config.pool_columns if shapes.slots else config.pools * shapes.max_past
    state = manifest.state_bytes_per_sequence
    return MemoryPlan(
        weights=_weight_bytes(manifest),
        columns=columns,
        caches=columns * manifest.kv_bytes_per_token,
        sequences=config.max_running,
        states=config.max_running * STATES_EACH * state,
        prefixes=config.kv_offload_mb * 1024**2 if config.prefix_cache else 0,
    )


def encoder_bytes(manifest: Manifest) -> int:
    """Most bytes that an encoder's graphs take: the CPU packs the weights for each of them; then the largest pass.

    Of a pass: the mask, scores and weights of every head, and a layer's rows.
    """
    model, rows = manifest.model, max(encoder_rows(manifest))
    copies = len(manifest.graphs) if manifest.npu is None else 1
    numbers = rows * rows * (1 + 2 * model.heads) + rows * (5 * model.hidden + model.ffn)
    return copies * _weight_bytes(manifest) + FLOAT_BYTES * numbers


def _weight_bytes(manifest: Manifest) -> int:
    return sum(entry.bytes for entry in manifest.files.values())


def _size(count: int) -> str:
    return f"{count / GIGABYTE:.2f} GB" if count >= 10 * LEAST_SHOWN else f"{count / LEAST_SHOWN:.1f} MB"
