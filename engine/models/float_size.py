"""What a checkpoint's weights take in float, and the method of quantisation that their size allows."""

from pathlib import Path

from engine.files.content import read_json
from engine.files.opening import JSON_BYTES

LARGEST_IN_FLOAT = 2 << 30  # bytes
INT8_SHARE = 1.125 / 4  # a byte and the 32nd part of a float32 scale for each float32 weight
MEMORY_SHARE, FLOAT_SHARE = 0.5, 0.25
_HALF_TYPES = ("float16", "bfloat16")


def quant_by_size(float_bytes: int, rounded: str) -> str:
    """The method unless asked otherwise: `fp32` for small models, else `rounded`. float_bytes: weights as float32."""
    return "fp32" if float_bytes <= LARGEST_IN_FLOAT else rounded


def generator_quant(float_bytes: int, machine: int) -> str:
    """The method unless asked otherwise for a model that generates: `int8`, which loses next to nothing, where it
    leaves half of the memory free, else `int4`. machine: its memory in bytes, 0 = not known."""
    stored = float_bytes * INT8_SHARE
    return "int8" if not machine or stored <= MEMORY_SHARE * machine else "int4"


def keeps_floats(float_bytes: int, machine: int) -> bool:
    """Whether a file of floats (0 bytes = it is none) stays in float32: nothing is rounded where memory is plenty."""
    return float_bytes > 0 and (not machine or float_bytes <= FLOAT_SHARE * machine)


def float_bytes(folder: Path) -> int:
    """About what the weights of a checkpoint's folder take as float32: by its files and the type in its config.json.

    What cannot be read counts nothing; it is refused when the checkpoint is read in earnest.
    """
    try:
        stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        config = read_json(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return 0
    kind = (config.get("dtype") or config.get("torch_dtype")) if isinstance(config, dict) else None
    return stored * 2 if kind in _HALF_TYPES else stored
