"""Whether keys and values are int8: by what that loses on the model at hand, or because memory is short. Pure.

Legend: D = head size, K = KV heads, L = layers with keys and values.
"""

from dataclasses import dataclass

from engine.bundle.float_file import FLOAT_BYTES
from engine.bundle.manifest import ModelSpec
from engine.compile.arguments import KvType

NEXT_TO_NOTHING = 0.05  # of what the weights lose
MEMORY_SHARE = 0.5  # of the machine, for weights and the float32 caches of one sequence


@dataclass(frozen=True, slots=True)
class CacheLoss:
    """Mean KL in nats. weights: of the graphs over float32 caches, against the float model. caches: of the same graphs
    over int8 caches, against float32 ones."""

    weights: float
    caches: float


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes. caches: float32 ones of one sequence of full length. weights: as stored. machine: 0 = not known."""

    caches: int
    weights: int
    machine: int

    @property
    def is_short(self) -> bool:
        """Whether float32 caches of even one sequence are too much."""
        return bool(self.machine) and self.caches + self.weights > MEMORY_SHARE * self.machine


def float_cache_bytes(model: ModelSpec, tokens: int) -> int:
    """2 * L * K * D float32 numbers a token."""
    return tokens * 2 * len(model.attention_layers) * model.kv_heads * model.head_dim * FLOAT_BYTES


def choose_kv(loss: CacheLoss, memory: CacheMemory) -> tuple[KvType, str]:
    """The type, and the reason with its figures."""
    share = loss.caches / loss.weights if loss.weights else float("inf")
    told = f"int8 ones lose KL {loss.caches:.1e}, {100 * share:.0f} % of what the weights lose"
    if share <= NEXT_TO_NOTHING:
        return KvType.INT8, f"keys and values are int8: {told}"
    if memory.is_short:
        sizes = f"{memory.caches / 1e9:.1f} GB beside weights of {memory.weights / 1e9:.1f} GB"
        there = f"float32 ones of one long sequence take {sizes}, the machine has {memory.machine / 1e9:.1f} GB"
        return KvType.INT8, f"keys and values are int8 although {told}: {there} (--kv float32 keeps them exact)"
    return KvType.FLOAT32, f"keys and values stay float32: {told} (--kv int8 takes a quarter of the memory)"
