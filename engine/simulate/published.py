"""Pass times that others published for devices, and the rule for the shapes between them.

AI Hub: perf.yaml of qai-hub-models, February 2026, w4a16, 4,096 columns; the least time to first token is one pass of
128 rows, one over the decode rate a pass of one row. mllm: its published rates for chunks of 32 over 1,024 columns.
Bytes of a token: layers x KV heads x head size x 2, one byte each (u8 caches).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.bundle.variant import PassShape


@dataclass(frozen=True, slots=True)
class Published:
    """One model on one device: a pass of `rows` rows took `rows_ms`, and decoding gave `decode_per_s` tokens."""

    model: str
    device: str
    rows: int
    rows_ms: float
    decode_per_s: float
    context: int
    kv_bytes: int
    source: str = "AI Hub"

    @property
    def title(self) -> str:
        """Its name where one word must say both."""
        return f"{self.device}/{self.model.lower()}"

    @property
    def one_row_ms(self) -> float:
        """A pass of one row."""
        return 1000.0 / self.decode_per_s


LLAMA_1B, LLAMA_3B, LLAMA_8B = 16_384, 57_344, 65_536

PUBLISHED = (
    Published("Llama-3.2-1B", "x-elite", 128, 69.3, 23.70, 4096, LLAMA_1B),
    Published("Llama-3.2-3B", "x-elite", 128, 116.9, 11.87, 4096, LLAMA_3B),
    Published("Llama-3.1-8B", "x-elite", 128, 226.9, 7.41, 4096, LLAMA_8B),
    Published("Phi-3.5-mini", "x-elite", 128, 185.8, 6.20, 4096, 196_608),
    Published("Qwen2.5-7B", "x-elite", 128, 174.9, 12.34, 4096, 28_672),
    Published("Falcon3-7B", "x-elite", 128, 197.4, 9.97, 4096, 57_344),
    Published("Granite-3.1-8B", "x-elite", 128, 295.4, 8.02, 4096, 81_920),
    Published("Llama-3.2-1B", "x2-elite", 128, 50.2, 90.4, 4096, LLAMA_1B),
    Published("Llama-3.2-3B", "x2-elite", 128, 75.0, 42.8, 4096, LLAMA_3B),
    Published("Llama-3.1-8B", "x2-elite", 128, 130.0, 21.0, 4096, LLAMA_8B),
    Published("Llama-3.2-1B", "8-elite", 128, 39.6, 64.1, 4096, LLAMA_1B),
    Published("Llama-3.2-3B", "8-elite", 128, 82.0, 28.0, 4096, LLAMA_3B),
    Published("Llama-3.1-8B", "8-elite", 128, 142.8, 14.1, 4096, LLAMA_8B),
    Published("Llama-3.2-1B", "8-elite-gen5", 128, 30.2, 74.4, 4096, LLAMA_1B),
    Published("Llama-3.2-3B", "8-elite-gen5", 128, 69.0, 32.7, 4096, LLAMA_3B),
    Published("Llama-3.1-8B", "8-elite-gen5", 128, 111.0, 16.2, 4096, LLAMA_8B),
    Published("Qwen3-1.7B", "8-gen3", 32, 42.2, 25.84, 1024, 57_344, "mllm"),
)


def find(model: str, device: str) -> tuple[Published, ...]:
    """Rows of the table; model 'all' takes every model of the device. ValueError that says what there is."""
    devices = list(dict.fromkeys(row.device for row in PUBLISHED))
    if device not in devices:
        raise ValueError(f"--device must be one of {', '.join(devices)}, not '{device}'")
    there = [row for row in PUBLISHED if row.device == device]
    wanted = [row for row in there if model.lower() in {"all", row.model.lower()}]
    if not wanted:
        names = ", ".join(row.model for row in there)
        raise ValueError(f"--model must be 'all' or one of {names} on {device}, not '{model}'")
    return tuple(wanted)


def known() -> tuple[str, ...]:
    """Every row as `device/model`, in lower case."""
    return tuple(row.title for row in PUBLISHED)


def named(text: str) -> Published:
    """The row that `device/model` names, in any case. ValueError that lists what there is."""
    row = next((row for row in PUBLISHED if row.title == text.lower()), None)
    if row is None:
        raise ValueError(f"'{text}' has no published pass times; known are {', '.join(known())}")
    return row


def price(published: Published, shapes: Iterable[PassShape]) -> dict[PassShape, float]:
    """Linear in rows between the two published points; the price of the published context for any narrower one.

    ValueError when a shape lies outside what was published.
    """
    slope = (published.rows_ms - published.one_row_ms) / (published.rows - 1)
    priced = {}
    for shape in shapes:
        if shape.rows > published.rows:
            raise ValueError(f"--rows must be at most {published.rows}, the most published, not {shape.rows}")
        if shape.context > published.context:
            raise ValueError(f"{shape} is wider than the {published.context} columns published")
        priced[shape] = published.one_row_ms + slope * (shape.rows - 1)
    return priced
