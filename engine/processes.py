"""The command lines that start our own processes."""

import sys
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig


def worker_command(config: EngineConfig) -> tuple[str, ...]:
    """The command line that starts a worker for `config`."""
    return (*_module("engine.worker"), msgspec.json.encode(config).decode())


def compiler_command(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """The command line that starts a process which compiles grammars."""
    ends = [str(end) for end in manifest.text.stop_ids]
    return (
        *_module("engine.grammar.compiler"),
        str(folder / manifest.text.tokenizer),
        str(manifest.model.vocab),
        *ends,
    )


def _module(name: str) -> tuple[str, ...]:
    """-P keeps a user's folder that happens to be called `engine` from being imported; a checkout needs its own."""
    is_checkout = Path.cwd() == Path(__file__).resolve().parents[1]
    return (sys.executable, *(() if is_checkout else ("-P",)), "-m", name)
