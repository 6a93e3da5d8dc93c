"""Building the engine of one bundle: shapes, runtime, pass times, scheduler, grammar masks, loop."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.bundle.check import check_contract, check_listed
from engine.bundle.hashes import check_once
from engine.bundle.manifest import MANIFEST_FILE, Manifest, load_manifest
from engine.bundle.variant import PassShape, ShapeTable, pin, shape_table
from engine.config import PAGE_COLUMNS, EngineConfig
from engine.errors import BundleError
from engine.files.opening import MANIFEST_BYTES, read_bytes
from engine.grammar.masks import GrammarMasks
from engine.grammar.matching import load_tokenizer
from engine.graphs.fused.runtime import FusedRuntime
from engine.graphs.onnx_qnn import qnn_provider
from engine.graphs.onnx_qnn_trial import check_bundle
from engine.graphs.onnx_runtime import OnnxRuntime
from engine.graphs.onnx_segments import SegmentRuntime
from engine.graphs.onnx_sessions import Provider, cpu_provider
from engine.graphs.paced_runtime import Pace, PacedRuntime
from engine.graphs.pass_times import believed, cost_file, is_complete, load_times, measure, save_times
from engine.graphs.runtime import Runtime
from engine.isolation.memory import usable_memory
from engine.messages import Ready
from engine.scheduling.build import ModelLimits, build_scheduler
from engine.scheduling.costs import COPY_BYTES_PER_MS, CostTable
from engine.simulate.published import named, price
from engine.worker.fused_settings import fused_settings
from engine.worker.loop import EngineLoop
from engine.worker.startup import Stages
from engine.worker.storage import choose_storage

log = logging.getLogger("hexserve.worker")

DEFAULT_COLUMNS = 4096
POOL_BUDGET_BYTES = 4 * 1024**3
PINNED_ROWS = 32


OpenRuntime = Callable[[Path, Manifest, ShapeTable, EngineConfig], Runtime]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A loop ready to step, and what to tell the parent about it."""

    loop: EngineLoop
    runtime: Runtime
    ready: Ready


def open_onnx(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    """The runtime of every bundle that the compiler makes."""
    provider = choose_provider(folder, manifest, config)
    if manifest.fused is not None:
        return FusedRuntime(folder, manifest, shapes, provider)
    if manifest.is_segmented:
        return SegmentRuntime(folder, manifest, shapes, provider)
    return OnnxRuntime(folder, manifest, shapes, config.pools, provider)


def open_paced(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    """A runtime that sleeps for the published time of a pass. BundleError when a shape has none."""
    try:
        published = named(config.paced)
        milliseconds = price(published, (*shapes.fixed, *shapes.prefill))
    except ValueError as error:
        raise BundleError(f"paced: {error}") from None
    if shapes.free:
        raise BundleError(f"paced: the bundle has no fixed shapes, so {published.title} has no times for it")
    log.warning("PACED: nothing is computed and every answer is noise; a pass takes the time of %s", published.title)
    return PacedRuntime(
        manifest, shapes, config.pools, Pace(published.title, milliseconds, time.perf_counter, time.sleep)
    )


def open_configured(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    """What the settings ask for."""
    return (open_paced if config.paced else open_onnx)(folder, manifest, shapes, config)


def assemble(config: EngineConfig, open_runtime: OpenRuntime = open_configured) -> Assembled:
    """Load a bundle and put the parts together, in stages. BundleError when it cannot be served as configured."""
    folder = Path(config.bundle)
    stages = Stages(log, time.monotonic)
    with stages.stage("manifest"):
        manifest = _with_chosen_weights(load_manifest(folder), config)
    with stages.stage("shapes"):
        config = settings_for(manifest, config)
        shapes = choose_shapes(manifest, config)
    with stages.stage("graphs and pools"):
        runtime = open_runtime(folder, manifest, shapes, config)
    with stages.stage("pass times"):
        column_ms = 0.0 if shapes.segmented else manifest.kv_bytes_per_token / COPY_BYTES_PER_MS
        costs = CostTable(_times(folder, manifest, config, runtime), column_ms)
    with stages.stage("scheduler"):
        limits = ModelLimits(manifest.max_context, manifest.kv_bytes_per_token)
        scheduler = build_scheduler(shapes, costs, limits, config)
        text = manifest.text
        masks = GrammarMasks(lambda: load_tokenizer(folder / text.tokenizer, manifest.model.vocab, text.stop_ids))
        loop = EngineLoop(scheduler, runtime, time.monotonic, masks)
    stages.finish()
    variants = ("free",) if shapes.free else tuple(str(shape) for shape in (*shapes.fixed, *shapes.prefill))
    if manifest.fused is not None:
        variants = tuple(graph.name for graph in manifest.graphs)
    ready = Ready(
        bundle=manifest.name,
        device=runtime.device,
        max_tokens_per_sequence=scheduler.rules.capacity.tokens_per_sequence,
        variants=variants,
    )
    return Assembled(loop, runtime, ready)


def _with_chosen_weights(manifest: Manifest, config: EngineConfig) -> Manifest:
    storage = choose_storage(manifest, config.weights, usable_memory())
    if storage is None:
        return manifest
    log.info("weights: %s", storage.reason)
    return storage.manifest


def choose_provider(folder: Path, manifest: Manifest, config: EngineConfig) -> Provider:
    """What runs the bundle's graphs: the CPU, or for an NPU bundle the QNN provider once its binaries were tried.

    Either way the files are what was compiled: their hashes were compared, now or at an earlier start.
    """
    memory = Path(config.cost_cache) if config.cost_cache else None
    if manifest.npu is None:
        check_listed(manifest)
        check_contract(manifest)
        check_once(folder, manifest, memory)
        return cpu_provider(config.threads)
    check_bundle(folder, manifest, memory)
    return qnn_provider(manifest)


def settings_for(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """What the settings mean for a bundle whose sequences have caches of their own.

    All of them run in one pass, so there is one pool; caches lie in main memory, so nothing has to be offloaded to it.
    """
    if manifest.fused is not None:
        return fused_settings(manifest, config, POOL_BUDGET_BYTES)
    if not manifest.is_segmented:
        return config
    offload = config.kv_offload_mb * 1024**2 // manifest.kv_bytes_per_token
    columns = config.pools * (config.pool_columns or _default_columns(manifest, config))
    return replace(config, pools=1, pool_columns=columns + offload, kv_offload_mb=0)


def choose_shapes(manifest: Manifest, config: EngineConfig) -> ShapeTable:
    """The shapes to use: what the bundle has, a free past sized by the settings, one pinned shape if deterministic."""
    shapes = shape_table(manifest, config.max_rows)
    if shapes.free:
        columns = config.pool_columns or _default_columns(manifest, config)
        step = shapes.past_step
        shapes = replace(shapes, max_past=max(step, -(-columns // step) * step))
    elif config.pool_columns and not shapes.slots:
        raise BundleError("pool_columns cannot be set for a bundle of fixed shapes: the widest graph decides it")
    return pin(shapes, PINNED_ROWS) if config.deterministic else shapes


def _default_columns(manifest: Manifest, config: EngineConfig) -> int:
    """Room for one sequence of full length, at least 4,096 columns, at most 4 GiB over all pools."""
    longest = min(config.max_context or manifest.max_context, manifest.max_context)
    affordable = POOL_BUDGET_BYTES // (manifest.kv_bytes_per_token * config.pools)
    return max(PAGE_COLUMNS, min(max(longest, DEFAULT_COLUMNS), affordable))


def _times(folder: Path, manifest: Manifest, config: EngineConfig, runtime: Runtime) -> dict[PassShape, float]:
    if config.deterministic:
        return {}
    if config.paced or not config.cost_cache:  # nobody else shall find paced times among a bundle's own
        return believed(runtime.shapes, measure(runtime, time.perf_counter))
    loaded = " ".join(graph.name for graph in manifest.graphs)
    identity = read_bytes(folder / MANIFEST_FILE, MANIFEST_BYTES) + loaded.encode()
    path = cost_file(Path(config.cost_cache), identity, config.threads, runtime.shapes)
    times = load_times(path) or {}
    if not is_complete(runtime.shapes, times):  # an earlier start may have stopped at its budget
        times = measure(runtime, time.perf_counter, times)
        _remember(path, times)
    return believed(runtime.shapes, times)


def _remember(path: Path, times: dict[PassShape, float]) -> None:
    try:
        save_times(path, times)
    except OSError as error:
        log.warning("pass times cannot be remembered: %s", error)
