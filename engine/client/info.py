"""What is being served: put together once the worker is ready."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

import msgspec

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig
from engine.messages import Ready


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is being served. Counts are tokens; `created` is Unix seconds.

    fingerprint: changes with the version, the bundle and the settings.
    """

    name: str
    created: int
    max_context: int
    vocab: int
    device: str
    fingerprint: str
    ready: Ready
    manifest: Manifest

    @property
    def max_input(self) -> int:
        """Most tokens of a text that becomes a vector or a score."""
        return self.ready.max_input_tokens or self.max_context

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters, each a model to its callers."""
        return tuple(self.ready.adapters)


NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})
# Places and verbosity change no answer.
FREE_SETTINGS = ("bundle", "draft", "log_level", "cost_cache", "lora", "kv_file", "kv_file_mb")


def engine_info(
    manifest: Manifest, ready: Ready, config: EngineConfig, denoising: Mapping[str, object] = NO_DEFAULTS
) -> EngineInfo:
    """Put together what is served; the fingerprint changes when the bundle, the settings or this software do.

    denoising: what requests get that do not say how their blocks are denoised.
    """
    settings = {name: value for name, value in asdict(config).items() if name not in FREE_SETTINGS}
    further = filter(None, (ready.adapters, dict(denoising) if manifest.diffusion is not None else {}))
    seen = msgspec.json.encode((msgspec.to_builtins(manifest), settings, *further))
    try:
        version = importlib.metadata.version("hexserve")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    return EngineInfo(
        name=manifest.name,
        created=manifest.created,
        max_context=ready.max_tokens_per_sequence,
        vocab=manifest.model.vocab,
        device=ready.device,
        fingerprint=f"hexserve-{version}-{hashlib.sha256(seen).hexdigest()[:8]}",
        ready=ready,
        manifest=manifest,
    )
