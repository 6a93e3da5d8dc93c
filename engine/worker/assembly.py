"""Building the engine of one bundle: shapes, runtime, pass times, scheduler, grammar masks, loop."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.adapters.adapter import read_adapters
from engine.adapters.named import named_adapters, read_salts
from engine.bundle.forecast_prefix import read_forecast_prefix
from engine.bundle.manifest import MANIFEST_FILE, Manifest, load_manifest
from engine.bundle.variant import PassShape, ShapeTable, pin, shape_of, shape_table
from engine.config import PAGE_COLUMNS, EngineConfig
from engine.drafts.block_draft import BlockDraft
from engine.drafts.draft_model import DraftModel
from engine.drafts.draft_passes import DraftPasses
from engine.drafts.same_tokens import check_same_tokens
from engine.errors import BundleError
from engine.files.opening import MANIFEST_BYTES, read_bytes
from engine.grammar.masks import GrammarMasks
from engine.grammar.matching import load_tokenizer
from engine.graphs.fused.runtime import FusedRuntime
from engine.graphs.onnx_provider import checked_provider
from engine.graphs.onnx_runtime import OnnxRuntime
from engine.graphs.onnx_segments import SegmentRuntime
from engine.graphs.onnx_sessions import Provider
from engine.graphs.paced_runtime import Pace, PacedRuntime
from engine.graphs.pass_times import believed, cost_file, is_complete, load_times, measure, save_times
from engine.graphs.runtime import Runtime
from engine.graphs.whole_context import WholeContextRuntime
from engine.isolation.memory import usable_memory
from engine.messages import Ready
from engine.scheduling.build import ModelLimits, build_scheduler
from engine.scheduling.costs import COPY_BYTES_PER_MS, CostTable
from engine.simulate.published import named, price
from engine.speculation.drafter import Drafter, NoDrafter
from engine.worker.encoder_assembly import assemble_encoder
from engine.worker.fused_settings import fused_settings
from engine.worker.kv_restart import open_kv_file
from engine.worker.loop import EngineLoop
from engine.worker.memory_plan import MemoryPlan, plan_memory
from engine.worker.recurrent import recurrent_settings
from engine.worker.spinning import ON as SPIN_ON
from engine.worker.spinning import settle_spin
from engine.worker.startup import Stages
from engine.worker.windows import window_of
from engine.worker.work_loop import Assembled

log = logging.getLogger("hexserve.worker")

DEFAULT_COLUMNS = 4096
POOL_BUDGET_BYTES = 4 * 1024**3
PINNED_ROWS = 32


OpenRuntime = Callable[[Path, Manifest, ShapeTable, EngineConfig], Runtime]


def open_onnx(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    """The runtime of every bundle that the compiler makes."""
    adapters, window = read_adapters(named_adapters(config.lora), manifest), window_of(manifest, config)
    provider = choose_provider(folder, manifest, config)
    if manifest.fused is not None:
        return FusedRuntime(folder, manifest, shapes, provider)
    if manifest.is_segmented:
        return SegmentRuntime(folder, manifest, shapes, provider, adapters, window)
    if manifest.reads_whole_context:
        return open_whole_context(folder, manifest, shapes, provider)
    runtime = OnnxRuntime(folder, manifest, shapes, config.pools, provider)
    if manifest.forecast is not None and config.forecast:
        runtime.load_prefix(read_forecast_prefix(folder, manifest.forecast, manifest.model, manifest.kv_dtype))
    return runtime


def open_whole_context(folder: Path, manifest: Manifest, shapes: ShapeTable, provider: Provider) -> Runtime:
    """The runtime of graphs without a past."""
    found = sorted({shape for graph in manifest.graphs if (shape := shape_of(graph)) is not None})
    table = ShapeTable(tuple(found), found[-1].rows, 0)
    lengths = [shape.rows for shape in found]
    return WholeContextRuntime(OnnxRuntime(folder, manifest, table, 1, provider), lengths, shapes)


def open_paced(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    """A runtime that sleeps for the published time of a pass. BundleError when a shape has none."""
    if config.window:
        raise BundleError(f"window = {config.window}: a paced server computes nothing that could see less")
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
        manifest = load_manifest(folder)
        config = settle_spin(manifest, config)
    if manifest.encoder is not None:
        return assemble_encoder(folder, manifest, config, lambda: choose_provider(folder, manifest, config), stages)
    with stages.stage("shapes"):
        config = settings_for(manifest, config)
        shapes = choose_shapes(manifest, config)
        _tell_memory(plan_memory(manifest, shapes, config), usable_memory())
    with stages.stage("graphs and pools"):
        runtime = open_runtime(folder, manifest, shapes, config)
        salts = read_salts(named_adapters(config.lora))
    with stages.stage("pass times"):
        column_ms = 0.0 if shapes.segmented else manifest.kv_bytes_per_token / COPY_BYTES_PER_MS
        costs = CostTable(_times(folder, manifest, config, runtime), column_ms)
    with stages.stage("scheduler"):
        state_bytes, forecast = manifest.state_bytes_per_sequence, manifest.forecast if config.forecast else None
        limits = ModelLimits(manifest.max_context, manifest.kv_bytes_per_token, state_bytes, forecast)
        scheduler = build_scheduler(shapes, costs, limits, config)
        text = manifest.text
        masks = GrammarMasks(lambda: load_tokenizer(folder / text.tokenizer, manifest.model.vocab, text.stop_ids))
    drafter: Drafter = NoDrafter()
    if config.draft:
        with stages.stage("draft"):
            drafter = _open_draft(folder, manifest, shapes, config, open_runtime)
    loop = EngineLoop(scheduler, runtime, time.monotonic, masks, salts=salts, drafter=drafter)
    kv_file = open_kv_file(folder, manifest, config, scheduler, runtime)
    if kv_file is not None:
        with stages.stage("kv file"):
            kv_file.restore()
    stages.finish()
    variants = ("free",) if shapes.free else tuple(str(shape) for shape in (*shapes.fixed, *shapes.prefill))
    if manifest.fused is not None:
        variants = tuple(graph.name for graph in manifest.graphs)
    ready = Ready(
        bundle=manifest.name,
        device=runtime.device,
        max_tokens_per_sequence=scheduler.rules.capacity.tokens_per_sequence,
        variants=variants,
        adapters={name: salt.hex() for name, salt in salts.salts.items()},
        max_input_tokens=scheduler.rules.capacity.tokens_per_input,
    )
    return Assembled(loop, runtime, ready, kv_file)


def _open_draft(
    folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig, open_runtime: OpenRuntime
) -> Drafter:
    """The draft model with a pool as wide as the served one's. Its times are measured even where passes have one shape.

    BundleError when it cannot guess for this bundle.
    """
    if config.paced:
        raise BundleError("draft: a paced server computes nothing, so nothing can be guessed")
    own = Path(config.draft)
    draft = load_manifest(own)
    if draft.fused is not None:
        raise BundleError("draft: fused graphs cannot guess; compile the draft with another --layout")
    if draft.model.recurrent is not None:
        raise BundleError(f"draft: {draft.name} has recurrent layers, whose state cannot go back behind a wrong guess")
    check_same_tokens(folder, manifest, own, draft)
    wanted = replace(
        config,
        bundle=config.draft,
        pools=1,
        pool_columns=0,
        kv_offload_mb=0,
        lora="",
        draft="",
        lookup_rows=0,
        forecast=False,
        deterministic=False,
        window=0,
        sinks=0,
    )
    free = draft.is_free_shape or draft.is_segmented
    wanted = settings_for(draft, replace(wanted, pool_columns=shapes.max_past) if free else wanted)
    runtime = open_runtime(own, draft, choose_shapes(draft, wanted), wanted)
    column_ms = 0.0 if draft.is_segmented else draft.kv_bytes_per_token / COPY_BYTES_PER_MS
    costs = CostTable(_times(own, draft, wanted, runtime), column_ms)
    log.info("draft: %s on %s guesses for %s", draft.name, runtime.device, manifest.name)
    passes, vocab = DraftPasses(runtime, costs, time.perf_counter), manifest.model.vocab
    if draft.diffusion is not None:
        return BlockDraft(passes, draft.diffusion, draft.max_context, vocab, config.draft_tokens)
    return DraftModel(passes, draft.max_context, vocab, config.draft_tokens)


def _tell_memory(plan: MemoryPlan, machine: int) -> None:
    """One line before anything is loaded, so that a start that runs out of memory has said why."""
    there = f"; the machine has {machine / 1e9:.1f} GB" if machine else ""
    log.log(logging.WARNING if machine and plan.weights > machine else logging.INFO, "memory: %s%s", plan, there)


def choose_provider(folder: Path, manifest: Manifest, config: EngineConfig) -> Provider:
    """As `checked_provider`, by the settings."""
    memory = Path(config.cost_cache) if config.cost_cache else None
    return checked_provider(folder, manifest, config.threads, memory, config.spin == SPIN_ON)


def settings_for(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """What the settings mean for a bundle whose sequences have caches of their own.

    All of them run in one pass, so there is one pool; caches lie in main memory, so nothing has to be offloaded to it.
    Where graphs have no past a prefix that is known saves nothing.
    """
    if manifest.fused is not None:
        return fused_settings(manifest, config, POOL_BUDGET_BYTES)
    if manifest.reads_whole_context:
        return replace(config, pools=1, prefix_cache=False, kv_offload_mb=0)
    if not manifest.is_segmented:
        return config
    if manifest.model.recurrent is not None:
        config = recurrent_settings(manifest, config)
    columns = config.pools * (config.pool_columns or _default_columns(manifest, config))
    if manifest.model.recurrent is not None:
        return replace(config, pools=1, pool_columns=columns)
    offload = config.kv_offload_mb * 1024**2 // manifest.kv_bytes_per_token
    return replace(config, pools=1, pool_columns=columns + offload, kv_offload_mb=0)


def choose_shapes(manifest: Manifest, config: EngineConfig) -> ShapeTable:
    """The shapes to use: what the bundle has, a free past sized by the settings, one pinned shape if deterministic.

    BundleError for settings that the bundle cannot follow.
    """
    if manifest.diffusion is not None and (config.lookup_rows or config.draft):
        setting = "draft" if config.draft else "lookup_rows"
        raise BundleError(f"{setting} guesses the next tokens: {manifest.name} denoises blocks of them")
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
    if config.deterministic or manifest.reads_whole_context:  # what a pass costs is how long its sequences are
        return {}
    if config.paced or not config.cost_cache:  # nobody else shall find paced times among a bundle's own
        return believed(runtime.shapes, measure(runtime, time.perf_counter))
    loaded = " ".join(graph.name for graph in manifest.graphs)
    if config.window:  # attention takes another graph, over other columns
        loaded += f" window {config.window} {config.sinks}"
    if config.spin == SPIN_ON:
        loaded += " spinning"
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
