"""`hexserve serve` with the scripted runtime in the worker; everything else is the product.

Started as `python -m tests.clients.scripted KIND FOLDER [--setting value ...]`: writes the bundle of a kind
(`scripted_bundle.py`) into the folder and serves it. Settings are those of `hexserve serve`, with HEXSERVE_* beside.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.client.engine import ClientLimits, Engine
from engine.config import EngineConfig
from server.commands.serve.start import start
from server.settings import load_settings
from tests.clients.scripted_bundle import write_bundle


def scripted_engine(config: EngineConfig, limits: ClientLimits, label: str) -> Engine:
    """The real engine; only the worker's command line differs."""
    config = replace(config, cost_cache="")
    words = (sys.executable, "-m", "tests.clients.scripted_worker", msgspec.json.encode(config).decode(), label)
    return Engine(config, limits, words, label)


def main(kind: str, folder: str, *flags: str) -> int:
    """Serve until told to stop; the exit code."""
    bundle = Path(folder) / kind
    write_bundle(bundle, kind)
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    read = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    environment = os.environ | {f"HEXSERVE_{name.upper()}": value for name, value in read.items()}
    return start(load_settings({"bundle": str(bundle)}, environment, None), scripted_engine)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
