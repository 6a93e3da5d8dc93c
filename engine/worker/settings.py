"""Settings of the worker that depend on the bundle: resolved or refused before anything is opened."""

import logging
from dataclasses import dataclass, replace

from engine.bundle.encoder import encoder_rows
from engine.bundle.manifest import Manifest
from engine.bundle.segments import MASKED_ATTENTION
from engine.bundle.speech import cross_bytes
from engine.bundle.tensors import pool_window_slots
from engine.bundle.variant import ShapeTable
from engine.bundle.weight_files import FLOAT_BYTES
from engine.config import BLOCK_SIZE, SAVER, EngineConfig
from engine.core.window_blocks import KEPT_SHARE, window_budget
from engine.errors import BundleError
from engine.runtime.attention import AttentionWindow

FOREIGN = ("draft", "lora", "window", "kv_file")  # settings of models that generate


def encoder_settings(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings without a cache. BundleError names a setting of models that generate."""
    _refuse_foreign(config, f"{manifest.name} turns texts into vectors or scores")
    return replace(config, kv_slots=0, kv_offload_mb=0, prefix_cache=False)


def _refuse_foreign(config: EngineConfig, what: str) -> None:
    if name := next((name for name in FOREIGN if getattr(config, name)), ""):
        raise BundleError(f"{name} is for models that generate; {what}")


SPEECH_BUDGET_BYTES = 4 * 1024**3
MOST_SPEECH_SLOTS = 16


def speech_settings(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """As many texts at once as there is memory for. BundleError names a setting of models that continue texts."""
    _refuse_foreign(config, f"{manifest.name} writes speech down")
    each = cross_bytes(manifest) + manifest.max_context * manifest.kv_bytes_per_token
    texts = max(1, min(config.max_running, MOST_SPEECH_SLOTS, SPEECH_BUDGET_BYTES // each))
    kv_slots = texts * manifest.max_context
    return replace(config, kv_slots=kv_slots, max_running=texts, kv_offload_mb=0, prefix_cache=False, prediction_rows=0)


def fused_settings(manifest: Manifest, config: EngineConfig, budget_bytes: int) -> EngineConfig:
    """One pool of whole caches, no shared prefixes, no host cache. BundleError for a setting that cannot be honoured.
    Without `kv_slots` there are as many caches as sequences may run and `budget_bytes` hold, at least as many as one
    step can use."""
    spec = manifest.fused
    assert spec is not None
    if config.lookup_rows > 0:
        raise BundleError("lookup_rows: a fused graph has one row for each decode, so nothing can be guessed behind it")
    if config.draft:
        raise BundleError("draft: a fused graph has one row for each decode, so a draft model's guesses have no place")
    affordable = budget_bytes // (spec.past * manifest.kv_bytes_per_token)
    usual = max(spec.decode_slots + 1, min(config.max_running, affordable))
    caches = config.kv_slots // spec.slots if config.kv_slots else usual
    if caches < 1:
        raise BundleError(f"kv_slots: {config.kv_slots} are fewer than the {spec.slots} of one cache")
    without = replace(config, kv_offload_mb=0, prefix_cache=False, reserve_tokens=0, prediction_rows=0)
    return replace(without, kv_slots=caches * spec.slots)


AUTO_ROWS = -1
# On Qwen2.5-Coder 0.5B: 4 gave a lone chat 1.13 to 1.20 times the tokens per second, 8 no more than that.
USUAL_ROWS = 4


def resolve_lookup(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings with `lookup_rows` as a number.
    None for a model that could not take back a wrong guess, and for one that has its own way to guess."""
    if config.lookup_rows != AUTO_ROWS:
        return config
    without = manifest.diffusion, manifest.fused, manifest.model.recurrent, manifest.encoder, manifest.forecast
    return replace(config, lookup_rows=0 if any((*without, manifest.speech)) or manifest.is_serial else USUAL_ROWS)


log = logging.getLogger("hexserve.worker")

STATES_BUDGET_BYTES = 4 * 1024**3
TOKEN_BYTES = 4  # what a pool of graphs without a past keeps of a token


def _state_bytes(manifest: Manifest) -> int:
    """Of a sequence: the state that counts and, of a segmented bundle, the one that a step writes."""
    return manifest.state_bytes_per_sequence * (1 if manifest.is_serial else 2)


def recurrent_settings(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings with no more running sequences than there is memory for, and without guesses of a request's own.
    BundleError for what was asked for and cannot be done."""
    family, what = manifest.model.family, "windows" if manifest.is_serial and manifest.window else "recurrent layers"
    for name, setting in (("lookup_rows", max(0, config.lookup_rows)), ("draft", config.draft)):
        if setting:
            raise BundleError(f"{name} = {setting}: {family} has {what}, whose state cannot take back a wrong guess")
    if config.kv_file:
        raise BundleError(f"kv_file = {config.kv_file}: {family} has {what}, whose states it does not hold")
    each, asked = _state_bytes(manifest), config.max_running
    most = max(1, STATES_BUDGET_BYTES // each)
    if most < asked:
        told = "max_running: %d instead of %d, as the states of each sequence take %.1f MB"
        log.info(told, most, asked, each / 1e6)
    return replace(config, max_running=min(asked, most), prediction_rows=0)


AUTO_SPIN, ON, OFF = "auto", "on", "off"
# Steps of smaller models take a millisecond or two: the host then needs the cores as much as the graphs do.
LEAST_BYTES = 100_000_000


def resolve_power(config: EngineConfig, cores: int) -> EngineConfig:
    """The settings of the CPU's threads that a battery wants: half of the cores unless `threads` says, none spins."""
    if config.power != SAVER:
        return config
    return replace(config, threads=config.threads or max(1, cores // 2), spin=OFF)


def resolve_spin(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """The settings with `spin` on or off, for all models of the worker. Off where an NPU computes."""
    if manifest.npu is not None:
        return replace(config, spin=OFF)
    if config.spin != AUTO_SPIN:
        return config
    return replace(config, spin=ON if is_large(manifest) else OFF)


def is_large(manifest: Manifest) -> bool:
    """Whether the CPU's threads may spin between its graphs."""
    return manifest.npu is None and _weight_bytes(manifest) >= LEAST_BYTES


def window_of(manifest: Manifest, config: EngineConfig) -> AttentionWindow:
    """The window that the settings ask for. BundleError names the setting that it cannot go with."""
    window, sinks = config.window, config.sinks
    if not window:
        return AttentionWindow()
    if any(manifest.model.layer_windows):
        raise BundleError(f"window = {window}: the model's layers have windows of their own")
    if not any(graph.name == MASKED_ATTENTION for graph in manifest.graphs):
        raise BundleError(
            f"window = {window}: the bundle has no graph {MASKED_ATTENTION}; compile it again as segments"
        )
    if config.deterministic:
        raise BundleError(f"window = {window}: rows that see all KV slots and others are computed in two ways")
    if config.kv_file:
        raise BundleError(f"window = {window}: a kv_file does not say under which window its blocks were computed")
    return AttentionWindow(window, sinks)


def sliding_window(manifest: Manifest, config: EngineConfig) -> int:
    """The widest window of layers that give back what lies behind it, 0 = there are none. Where rows must have the same
    bits in every step all slots are kept: how a sum is cut depends on the first."""
    gives = not config.deterministic if manifest.is_segmented else pool_window_slots(manifest) > 0
    return max(manifest.model.layer_windows, default=0) if gives else 0


def pool_window(manifest: Manifest) -> int:
    """KV slots that rows of a pool see in every layer, 0 = some layer sees all of them."""
    has_own = (manifest.is_segmented, manifest.is_serial, manifest.fused is not None, manifest.reads_whole_context)
    return 0 if any(has_own) else manifest.model.sight


def _window_bytes(manifest: Manifest) -> int:
    """Of a token's keys and values in layers with a window."""
    return round(manifest.kv_bytes_per_token * manifest.model.window_share)


def slot_bytes(manifest: Manifest, config: EngineConfig) -> int:
    """Bytes of keys and values that a slot of a pool takes, with its share of what layers with a window keep."""
    behind = _window_bytes(manifest) if sliding_window(manifest, config) else 0
    return max(1, manifest.kv_bytes_per_token - behind + behind // KEPT_SHARE)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes: of weights as stored, and the most of keys and values (`slots` tokens, in layers with a window
    `window_slots`), of states and of what the host memory for prefixes holds."""

    weights: int
    slots: int
    caches: int
    sequences: int
    states: int
    prefixes: int
    window_slots: int = 0

    @property
    def together(self) -> int:
        return self.weights + self.caches + self.states + self.prefixes

    def __str__(self) -> str:
        parts = [f"weights {_size(self.weights)}"]
        if self.slots:
            behind = f" ({self.window_slots:,} in layers with a window)" if self.window_slots else ""
            parts.append(f"keys and values of {self.slots:,} tokens{behind} {_size(self.caches)}")
        if self.states:
            parts.append(f"states of {self.sequences:,} sequences {_size(self.states)}")
        if self.prefixes:
            parts.append(f"{'snapshots of states' if self.states else 'host KV cache'} {_size(self.prefixes)}")
        return f"{', '.join(parts)}, together at most {_size(self.together)}"


def plan_memory(manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> MemoryPlan:
    """For the graphs of the manifest that are to be loaded. What onnxruntime itself needs is not in it."""
    # With fused graphs a pool is so many whole caches, and a step spans one of them.
    slots = config.kv_slots if shapes.slots or manifest.speech is not None else shapes.max_past
    slots = 0 if manifest.is_serial else slots  # all that a sequence has is its state
    token = TOKEN_BYTES if manifest.reads_whole_context else manifest.kv_bytes_per_token
    window = sliding_window(manifest, config)
    budget = BLOCK_SIZE * window_budget(window, slots, shapes.max_rows, BLOCK_SIZE)
    seen = pool_window_slots(manifest) or budget if window else slots
    behind = _window_bytes(manifest)
    heard = config.max_running * cross_bytes(manifest) if manifest.speech is not None else 0
    return MemoryPlan(
        weights=_encoder_bytes(manifest) if manifest.encoder is not None else _weight_bytes(manifest),
        slots=slots,
        caches=slots * (token - behind) + seen * behind + heard,
        sequences=config.max_running,
        states=config.max_running * _state_bytes(manifest),
        prefixes=config.kv_offload_mb * 1024**2 if config.prefix_cache else 0,
        window_slots=seen if window else 0,
    )


def _encoder_bytes(manifest: Manifest) -> int:
    """Most bytes that an encoder's graphs take: the CPU packs the weights for each of them; then the largest step.
    Of a step: the mask, scores and weights of every head, and a layer's rows."""
    model, rows = manifest.model, max(encoder_rows(manifest))
    copies = len(manifest.graphs) if manifest.npu is None else 1
    numbers = rows * rows * (1 + 2 * model.heads) + rows * (5 * model.hidden + model.ffn)
    return copies * _weight_bytes(manifest) + FLOAT_BYTES * numbers


def _weight_bytes(manifest: Manifest) -> int:
    return sum(entry.bytes for entry in manifest.files.values())


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.1f} MB"
