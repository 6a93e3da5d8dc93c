"""Whether the threads of the CPU provider spin: wait for their next work without giving their cores away. Pure."""

from dataclasses import replace

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig

AUTO, ON, OFF = "auto", "on", "off"
# Passes of smaller models take a millisecond or two: the host then needs the cores as much as the graphs do.
LEAST_BYTES = 100_000_000


def settle_spin(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings with `spin` on or off, for all models of the worker. Off where an NPU computes or nothing does."""
    if manifest.npu is not None or config.paced:
        return replace(config, spin=OFF)
    if config.spin != AUTO:
        return config
    weights = sum(entry.bytes for entry in manifest.files.values())
    return replace(config, spin=ON if weights >= LEAST_BYTES else OFF)
