"""What the settings mean for a bundle of fused graphs: how many caches there are, and what such graphs cannot do."""

from dataclasses import replace

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig
from engine.errors import BundleError


def fused_settings(manifest: Manifest, config: EngineConfig, budget_bytes: int) -> EngineConfig:
    """One pool of whole caches, no shared prefixes, no host cache. BundleError for a setting that cannot be honoured.

    Without `pool_columns` there are as many caches as sequences may run and `budget_bytes` hold, at least as many as
    one pass can use.
    """
    spec = manifest.fused
    assert spec is not None
    if config.lookup_rows:
        raise BundleError("lookup_rows: a fused graph has one row for each decode, so nothing can be guessed behind it")
    if config.draft:
        raise BundleError("draft: a fused graph has one row for each decode, so a draft model's guesses have no place")
    if config.paced:
        raise BundleError("paced: fused graphs have no published pass times")
    at_once = spec.decode_slots + 1
    if config.pool_columns:
        caches = config.pool_columns // spec.columns
        if caches < 1:
            raise BundleError(f"pool_columns: {config.pool_columns} are fewer than the {spec.columns} of one cache")
    else:
        affordable = budget_bytes // (spec.past * manifest.kv_bytes_per_token)
        caches = max(at_once, min(config.max_running, affordable))
    settled = replace(config, pools=1, pool_columns=caches * spec.columns)
    return replace(settled, kv_offload_mb=0, prefix_cache=False, reserve_tokens=0, prediction_rows=0)
