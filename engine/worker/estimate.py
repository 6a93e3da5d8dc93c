"""`python -m engine.worker.estimate <EngineConfig as JSON>`: the memory that such a worker will take.
Prints {"bytes": N, "prefixes": M}, or {"error": TEXT} when the bundle cannot be served so. M of the N bytes are there
for known prefixes only, as `kv_offload_mb` allows."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.bundle.manifest import load_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.assembly import choose_shapes, settings_for
from engine.worker.settings import plan_memory

WORKER_BYTES = 160 * 1024**2  # interpreter, libraries and the helpers of its text side


def estimate(config: EngineConfig) -> int:
    """The most bytes that the model, its draft model, another device and their workers will take. BundleError."""
    manifest, asked = load_manifest(Path(config.bundle)), config
    config = settings_for(manifest, config)
    together = plan_memory(manifest, choose_shapes(manifest, config), config).together
    if config.devices:
        try:
            together += estimate(replace(asked, bundle=config.devices, devices=""))
        except BundleError:
            if not config.devices_optional:
                raise
    if not config.draft:
        return WORKER_BYTES + together
    return together + estimate(replace(config, bundle=config.draft, draft="", devices="", kv_offload_mb=0, kv_slots=0))


def main(arguments: list[str]) -> int:
    config = msgspec.json.decode(arguments[0], type=EngineConfig)
    try:
        needed = estimate(config)
        bare = estimate(replace(config, kv_offload_mb=0))
        answer: dict[str, object] = {"bytes": needed, "prefixes": needed - bare}
    except BundleError as error:
        answer = {"error": str(error)}
    sys.stdout.write(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
