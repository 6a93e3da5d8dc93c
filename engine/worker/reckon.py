"""`python -m engine.worker.reckon <EngineConfig as JSON>`: what a worker of that configuration will take, unstarted.

Prints {"bytes": N, "prefixes": M}, or {"error": TEXT} when the bundle cannot be served so. M of the N bytes are there
for known prefixes only, as `kv_offload_mb` allows.
"""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.bundle.manifest import load_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.assembly import choose_shapes, settings_for
from engine.worker.memory_plan import encoder_bytes, plan_memory

WORKER_BYTES = 160 * 1024**2  # interpreter, libraries and the helpers of its text side


def reckon(config: EngineConfig) -> int:
    """The most bytes that the model, its draft model and their worker will take. BundleError."""
    manifest = load_manifest(Path(config.bundle))
    if manifest.encoder is not None:
        return WORKER_BYTES + encoder_bytes(manifest)
    config = settings_for(manifest, config)
    together = plan_memory(manifest, choose_shapes(manifest, config), config).together
    if not config.draft:
        return WORKER_BYTES + together
    return together + reckon(replace(config, bundle=config.draft, draft="", kv_offload_mb=0, pool_columns=0))


def main(arguments: list[str]) -> int:
    """The exit code."""
    config = msgspec.json.decode(arguments[0], type=EngineConfig)
    try:
        needed = reckon(config)
        bare = reckon(replace(config, kv_offload_mb=0))
        answer: dict[str, object] = {"bytes": needed, "prefixes": needed - bare}
    except BundleError as error:
        answer = {"error": str(error)}
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
