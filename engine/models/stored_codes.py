"""Weights that come quantised, as `quantization_config` says, and how a folder is quantised by default. No numpy."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.errors import UnsupportedModel
from engine.files import JSON_BYTES, brief, read_json
from engine.models.config_fields import ConfigFields, config_of, four_bits_because, quant_by_size
from engine.models.encoders import is_encoder_folder
from engine.models.speech import is_speech_folder

CONFIG = "quantization_config"


class CodeFormat(StrEnum):
    """How tensors of codes are laid out; the values are those of `quant_method`."""

    GPTQ = "gptq"
    AWQ = "awq"
    COMPRESSED = "compressed-tensors"
    FP8 = "fp8"
    FBGEMM_FP8 = "fbgemm_fp8"
    MODELOPT = "modelopt"
    MXFP4 = "mxfp4"
    BITSANDBYTES = "bitsandbytes"


_HALF_TYPES = ("float16", "bfloat16")
FLOAT_BITS = 32
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CARRIED = ("pack-quantized", "int-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")
_FLOAT_FORMATS = ("float-quantized", "naive-quantized", "mixed-precision", "dense")


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """How a checkpoint's codes are stored."""

    format: CodeFormat
    bits: int = 8  # of a code, where all matrices have one number
    has_zeros_less_one: bool = False  # GPTQ's first format stores zero points less one
    tile: tuple[int, ...] = ()  # outputs and inputs that share a scale of 8-bit floats, () = as the scales' shape says
    is_carried: bool = True  # codes fit `MatMulNBits` without rounding


def read_stored_codes(values: Mapping[str, object]) -> StoredCodes | None:
    """Of a config.json; None when weights come as floats. UnsupportedModel names what cannot be read."""
    nested = values.get("text_config")
    found = values.get(CONFIG) or (nested.get(CONFIG) if isinstance(nested, Mapping) else None)
    config = ConfigFields({CONFIG: found}).group(CONFIG)
    if config is None:
        return None
    method = config.text("quant_method", CodeFormat.BITSANDBYTES if config.raw("load_in_4bit") is not None else "")
    if method in ("auto-round", "intel/auto-round"):
        packing = config.text("packing_format", "auto_round:auto_gptq")
        method = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}.get(packing, packing)
    if method not in set(CodeFormat):
        raise UnsupportedModel(f"{CONFIG}: quant_method {brief(method)} is not supported ({', '.join(CodeFormat)} are)")
    return _READERS[CodeFormat(method)](config)


def stored_codes_of(folder: Path) -> StoredCodes | None:
    """The same of a checkpoint's folder; what cannot be read is refused when the checkpoint is read in earnest."""
    try:
        return read_stored_codes(config_of(folder))
    except UnsupportedModel:
        return None


def float_bytes(folder: Path) -> int:
    """About what the weights of a checkpoint's folder take as float32: by its files and the type in its config.json.
    What cannot be read counts nothing; it is refused when the checkpoint is read in earnest."""
    try:
        files = list(folder.glob("*.safetensors"))
        parts = [path for path in files if not path.name.startswith("consolidated")]  # Mistral's: all of them once more
        stored = sum(path.stat().st_size for path in parts or files)
        read_json(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return 0
    config, codes = config_of(folder), stored_codes_of(folder)
    if codes is not None:
        return stored * FLOAT_BITS // codes.bits
    is_half = (config.get("dtype") or config.get("torch_dtype")) in _HALF_TYPES
    return stored * (1 + is_half)


def _gptq(config: ConfigFields) -> StoredCodes:
    version, bits = config.text("checkpoint_format", "gptq"), config.integer("bits", 1, 16, 4)
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"{CONFIG}: checkpoint_format {brief(version)} is not supported (gptq, gptq_v2)")
    if bits not in (4, 8):
        raise UnsupportedModel(f"{CONFIG}: codes of {bits} bits are not supported (4 and 8 are)")
    return StoredCodes(CodeFormat.GPTQ, bits, version == "gptq")


def _awq(config: ConfigFields) -> StoredCodes:
    version = config.text("version", "gemm").lower()
    if version != "gemm":
        raise UnsupportedModel(f"{CONFIG}: version {brief(version)} of AWQ is not supported (gemm is)")
    bits = config.integer("bits" if config.raw("bits") is not None else "w_bit", 1, 16, 4)
    if bits != 4:
        raise UnsupportedModel(f"{CONFIG}: AWQ with {bits} bits is not supported (4 are)")
    return StoredCodes(CodeFormat.AWQ, 4)


def _compressed(config: ConfigFields) -> StoredCodes:
    form = config.text("format", "dense")
    if form not in (*_CARRIED, *_FLOAT_FORMATS):
        supported = ", ".join((*_CARRIED, *_FLOAT_FORMATS))
        raise UnsupportedModel(f"{CONFIG}: format {brief(form)} is not supported (supported: {supported})")
    transforms = config.group("transform_config")
    if transforms is not None and transforms.raw("config_groups"):
        raise UnsupportedModel(f"{CONFIG}: transform_config is not supported")
    bits = 8 if form in _FLOAT_FORMATS else 4
    return StoredCodes(CodeFormat.COMPRESSED, bits, tile=_block_structure(config), is_carried=form in _CARRIED)


def _block_structure(config: ConfigFields) -> tuple[int, ...]:
    """Outputs and inputs of a block of `config_groups`, () where there is none."""
    groups = config.group("config_groups") or ConfigFields({})
    weights = [group.group("weights") for name in groups.names() if (group := groups.group(name)) is not None]
    blocks = [each for each in weights if each is not None and each.has("block_structure")]
    found = {tuple(map(int, each.numbers("block_structure", 2, 1, 1 << 16))) for each in blocks}
    if len(found) > 1:
        raise UnsupportedModel(f"{CONFIG}: config_groups with blocks of several sizes are not supported")
    return found.pop() if found else ()


def _float8(config: ConfigFields) -> StoredCodes:
    sizes = config.numbers("weight_block_size", 2, 1, 1 << 16) if config.has("weight_block_size") else ()
    return StoredCodes(CodeFormat.FP8, tile=tuple(map(int, sizes)), is_carried=False)


def _modelopt(config: ConfigFields) -> StoredCodes:
    algorithm = config.text("quant_algo", "FP8").upper()
    if algorithm not in ("FP8", "NVFP4"):
        raise UnsupportedModel(f"{CONFIG}: quant_algo {brief(algorithm)} is not supported (FP8, NVFP4)")
    return StoredCodes(CodeFormat.MODELOPT, bits=8 if algorithm == "FP8" else 4, is_carried=algorithm == "NVFP4")


def _bitsandbytes(config: ConfigFields) -> StoredCodes:
    is_four_bit = config.flag("load_in_4bit", False)
    return StoredCodes(CodeFormat.BITSANDBYTES, bits=4 if is_four_bit else 8, is_carried=not is_four_bit)


_READERS = {
    CodeFormat.GPTQ: _gptq,
    CodeFormat.AWQ: _awq,
    CodeFormat.COMPRESSED: _compressed,
    CodeFormat.FP8: _float8,
    CodeFormat.FBGEMM_FP8: _float8,
    CodeFormat.MODELOPT: _modelopt,
    CodeFormat.MXFP4: lambda _: StoredCodes(CodeFormat.MXFP4, bits=4),
    CodeFormat.BITSANDBYTES: _bitsandbytes,
}


def checkpoint_quant(folder: Path, machine: int, rate: float = 0.0) -> str:
    """The nearest to its floats that its size allows. machine and rate: of its memory, as `four_bits_because` has them.
    Encoders and Whispers have at least 8 bits; codes that bundles hold as they are stay."""
    size, stored = float_bytes(folder), stored_codes_of(folder)
    if is_encoder_folder(folder):
        return quant_by_size(size, "int8")
    if stored is not None and stored.is_carried:
        return "keep"
    if is_speech_folder(folder):
        return "int8"
    return "int4" if four_bits_because(size, machine, 0.0 if _has_experts(folder) else rate) else "int8"


def _has_experts(folder: Path) -> bool:
    config = config_of(folder)
    parts = (config, config.get("text_config"))
    return any(isinstance(part, dict) and any(part.get(count) for count in _EXPERT_COUNTS) for part in parts)
