"""What a checkpoint's weights take in float, and whether that is little enough to leave them so."""

from pathlib import Path

from engine.files.content import read_json
from engine.files.opening import JSON_BYTES

LARGEST_IN_FLOAT = 2 << 30  # bytes
_HALF_TYPES = ("float16", "bfloat16")


def quant_by_size(float_bytes: int, rounded: str) -> str:
    """The method unless asked otherwise: `fp32` for small models, else `rounded`. float_bytes: weights as float32."""
    return "fp32" if float_bytes <= LARGEST_IN_FLOAT else rounded


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
