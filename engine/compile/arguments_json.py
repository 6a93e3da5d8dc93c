"""Arguments on their way to the compiler's own process."""

from dataclasses import fields
from pathlib import Path

import msgspec

from engine.compile.arguments import CompileArguments


def encode_arguments(arguments: CompileArguments) -> str:
    """As JSON, for the compiler's own process."""
    return msgspec.json.encode(arguments, enc_hook=_path_text).decode()


def decode_arguments(text: str) -> CompileArguments:
    """The inverse of `encode_arguments`; fields with a default may be left out. Raises msgspec.DecodeError."""
    values = msgspec.json.decode(text, type=dict[str, object])
    unknown = sorted(values.keys() - {field.name for field in fields(CompileArguments)})
    if unknown:
        raise msgspec.ValidationError(f"unknown field {unknown[0]}")
    return msgspec.convert(values, CompileArguments, dec_hook=_path_of)


def _path_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _path_of(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{kind.__name__} cannot be received")
