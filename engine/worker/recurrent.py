"""What settings mean for a model whose recurrent layers carry a state for every sequence, and which it refuses."""

import logging
from dataclasses import replace

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig
from engine.errors import BundleError

log = logging.getLogger("hexserve.worker")

STATES_BUDGET_BYTES = 4 * 1024**3
STATES_EACH = 2  # the one that counts, and the one that a pass writes


def recurrent_settings(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings with no more running sequences than there is memory for, and without guesses of a request's own.

    BundleError for what was asked for and cannot be done.
    """
    family = manifest.model.family
    for name in ("lookup_rows", "draft"):
        if setting := getattr(config, name):
            raise BundleError(
                f"{name} = {setting}: {family} has recurrent layers, whose state cannot take back a wrong guess"
            )
    if config.kv_file:
        raise BundleError(f"kv_file = {config.kv_file}: {family} has recurrent layers, whose states it does not hold")
    most = max(1, STATES_BUDGET_BYTES // (STATES_EACH * manifest.state_bytes_per_sequence))
    if most < config.max_running:
        log.info(
            "max_running: %d instead of %d, as each sequence has two states of %.1f MB",
            most,
            config.max_running,
            manifest.state_bytes_per_sequence / 1e6,
        )
    return replace(config, max_running=min(config.max_running, most), prediction_rows=0)
