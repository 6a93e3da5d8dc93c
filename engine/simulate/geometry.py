"""Geometry of the models in `published.py`: what a cache of their size and a vocabulary of their width need."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes as a checkpoint's config.json has them."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float
    part_layers: int = 0  # of a part of the bundle that AI Hub ships, the head in the last; 0 = all (not known)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in u8 caches."""
        return 2 * self.layers * self.kv_heads * self.head_dim


GEOMETRY: Mapping[str, Geometry] = MappingProxyType(
    {
        "Llama-3.2-1B": Geometry("llama", 16, 2048, 32, 8, 64, 8192, 128_256, 500_000.0, 8),
        "Llama-3.2-3B": Geometry("llama", 28, 3072, 24, 8, 128, 8192, 128_256, 500_000.0, 14),
        "Llama-3.1-8B": Geometry("llama", 32, 4096, 32, 8, 128, 14_336, 128_256, 500_000.0, 9),
        "Phi-3.5-mini": Geometry("phi3", 32, 3072, 32, 32, 96, 8192, 32_064, 10_000.0, 16),
        "Qwen2.5-7B": Geometry("qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064, 1_000_000.0),
        "Falcon3-7B": Geometry("llama", 28, 3072, 12, 4, 256, 23_040, 131_072, 1_000_042.0, 8),
        "Granite-3.1-8B": Geometry("llama", 40, 4096, 32, 8, 128, 12_800, 49_155, 10_000_000.0),
        "Qwen3-1.7B": Geometry("qwen3", 28, 2048, 16, 8, 128, 6144, 151_936, 1_000_000.0, 10),
    }
)
