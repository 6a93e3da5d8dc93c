"""Building the engine of one bundle: shapes, runtime, step times, scheduler, grammar masks, loop."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.adapters.adapter import read_adapters
from engine.adapters.named import named_adapters, read_salts
from engine.bundle.loss_text import form_text, parity_text
from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.tensors import pool_window_slots
from engine.bundle.variant import ShapeTable, pin, shape_table
from engine.bundle.weight_files import FLOAT_BYTES
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.plan import Planner
from engine.core.policy import COPY_BYTES_PER_MS, CostTable
from engine.core.scheduler import Scheduler
from engine.core.speculation import Drafter
from engine.core.text_scheduler import SpeechScheduler, TextScheduler
from engine.errors import BundleError, StepFailed
from engine.grammar.masks import GrammarMasks, load_tokenizer
from engine.isolation.machine import give_back_read, usable_memory
from engine.messages import Ready
from engine.runtime.encoder import EncoderRuntime
from engine.runtime.interface import Runtime
from engine.runtime.opening import open_generator
from engine.runtime.qnn.provider import qnn_provider
from engine.runtime.qnn.trial import checked_provider
from engine.runtime.reading import self_check
from engine.runtime.sessions import cpu_provider
from engine.runtime.speech import NpuSpeechRuntime, SpeechRuntime
from engine.runtime.vision import FixedVisionGraph, VisionGraph
from engine.speculation.draft_models import BlockDraft, DraftModel
from engine.speculation.draft_steps import DraftSteps, check_same_tokens
from engine.worker import settings
from engine.worker.images import ImageQueue
from engine.worker.kv_file import KvRestart, SequenceMover, open_kv_file, reason_to_keep
from engine.worker.step import EngineLoop
from engine.worker.step_times import step_times
from engine.worker.thread_trial import resolve_threads

log = logging.getLogger("hexserve.worker")

DEFAULT_SLOTS = 4096
POOL_BUDGET_BYTES = 4 * 1024**3
PINNED_ROWS = 32


@dataclass(frozen=True, slots=True)
class Assembled:
    """A loop ready to step, and what to tell the parent about it. kv_file: where its blocks outlive it, if anywhere.
    mover: hands sequences over to other workers, None where it cannot."""

    loop: EngineLoop
    runtime: Runtime
    ready: Ready
    kv_file: KvRestart | None = None
    mover: SequenceMover | None = None


class Stages:
    """One stage follows the other; where a start fails or hangs, the last line of the debug log says in which."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._taken_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name a stage when it begins; its time counts when it ends without an error."""
        self._log.debug("start: %s", name)
        began = self._clock()
        yield
        self._taken_s[name] = self._clock() - began

    def finish(self) -> None:
        times = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._taken_s.items())
        self._log.info("started in %.2f s: %s", sum(self._taken_s.values()), times)


OpenRuntime = Callable[[Path, Manifest, ShapeTable, EngineConfig], Runtime]


def open_onnx(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
    memory = Path(config.cost_cache) if config.cost_cache else None
    provider = checked_provider(folder, manifest, config.threads, memory, config.spin == settings.ON)
    if manifest.encoder is not None:
        return EncoderRuntime(folder, manifest, provider)
    if manifest.speech is not None:
        runtime = SpeechRuntime if manifest.npu is None else NpuSpeechRuntime
        return runtime(folder, manifest, shapes, config.max_running, provider)
    adapters, window = read_adapters(named_adapters(config.lora), manifest), settings.window_of(manifest, config)
    return open_generator(folder, manifest, shapes, provider, adapters, window, config.forecast)


def assemble(config: EngineConfig, open_runtime: OpenRuntime = open_onnx) -> Assembled:
    """Load a bundle and put the parts together, in stages. BundleError when it cannot be served as configured."""
    folder = Path(config.bundle)
    stages = Stages(log, time.monotonic)
    with stages.stage("manifest"):
        manifest = load_manifest(folder)
        loses = parity_text(manifest.parity)
        log.info("weights: %s; against their floats: %s", form_text(manifest), loses or "not measured")
        if config.devices:
            first = Path(config.devices)
            check_same_tokens(first, load_manifest(first), folder, manifest, "devices")
        config = settings.resolve_power(config, os.cpu_count() or 1)
    with stages.stage("threads"):
        config = resolve_threads(folder, manifest, config)
        config = settings.resolve_lookup(manifest, settings.resolve_spin(manifest, config))
    with stages.stage("shapes"):
        config = settings_for(manifest, config)
        shapes = choose_shapes(manifest, config)
        # Before anything is loaded, so that a start that runs out of memory has said why.
        needs, machine = settings.plan_memory(manifest, shapes, config), usable_memory()
        there = f"; the machine has {machine / 1e9:.1f} GB" if machine else ""
        is_too_much = machine and needs.weights > machine
        log.log(logging.WARNING if is_too_much else logging.INFO, "memory: %s%s", needs, there)
    with stages.stage("graphs and pool"):
        runtime = open_runtime(folder, manifest, shapes, config)
        _tell_self_check(manifest, runtime)
        salts = read_salts(named_adapters(config.lora))
    with stages.stage("step times"):
        slot_ms = 0.0 if shapes.segmented else manifest.kv_bytes_per_token / COPY_BYTES_PER_MS
        times = step_times(folder, manifest, config, runtime)
        costs = CostTable(times, slot_ms)
    scheduler = _open_planner(manifest, shapes, costs, config)
    kv_file = open_kv_file(folder, manifest, config, scheduler, runtime) if isinstance(scheduler, Scheduler) else None
    text = manifest.text
    masks = GrammarMasks(lambda: load_tokenizer(folder / text.tokenizer, manifest.model.vocab, text.stop_ids))
    drafter = Drafter()
    if config.draft:
        with stages.stage("draft"):
            drafter = _open_draft(folder, manifest, shapes, config, open_runtime)
    loop = EngineLoop(scheduler, runtime, time.monotonic, masks, salts, drafter, _open_images(folder, manifest, config))
    if kv_file is not None:
        with stages.stage("kv file"):
            kv_file.restore()
    give_back_read(folder)
    stages.finish()
    keeps = reason_to_keep(manifest, scheduler, runtime, config.prefix_cache)
    ready = Ready(
        bundle=manifest.name,
        device=runtime.device,
        max_tokens_per_sequence=scheduler.capacity.tokens_per_sequence,
        variants=_variants(manifest, shapes),
        adapters={name: salt.hex() for name, salt in salts.salts.items()},
        max_input_tokens=scheduler.capacity.tokens_per_input,
        costs=tuple((shape.rows, shape.past, milliseconds) for shape, milliseconds in times.items()),
        keeps=keeps,
    )
    if keeps or not isinstance(scheduler, Scheduler):
        return Assembled(loop, runtime, ready, kv_file)
    return Assembled(loop, runtime, ready, kv_file, SequenceMover(folder, manifest, scheduler, runtime))


def _open_planner(manifest: Manifest, shapes: ShapeTable, costs: CostTable, config: EngineConfig) -> Planner:
    if manifest.encoder is not None:
        pair = manifest.rerank
        middle_ids = pair.middle_ids if pair is not None and pair.has_types else ()
        # Sums depend on where in a step a text lies, so a deterministic one has a step of its own.
        return TextScheduler(shapes, costs, middle_ids, alone=config.deterministic)
    if manifest.speech is not None:
        features = manifest.speech.features * FLOAT_BYTES
        return SpeechScheduler(costs, config.max_running, manifest.max_context, features)
    of_all = settings.pool_window(manifest)
    limits = ModelLimits(
        manifest.max_context,
        manifest.kv_bytes_per_token,
        manifest.state_bytes_per_sequence,
        manifest.forecast if config.forecast else None,
        of_all or settings.sliding_window(manifest, config),
        of_all=of_all > 0,
        window_blocks=pool_window_slots(manifest) // BLOCK_SIZE,
    )
    return build_scheduler(shapes, costs, limits, config)


def _open_images(folder: Path, manifest: Manifest, config: EngineConfig) -> ImageQueue | None:
    """What reads images beside the steps: on the CPU half of the cores are left to these."""
    if manifest.vision is None:
        return None
    spins = config.spin == settings.ON
    threads = config.threads if spins else max(1, (config.threads or os.cpu_count() or 1) // 2)
    provider = cpu_provider(threads, spins) if manifest.npu is None else qnn_provider(manifest)
    is_fixed = manifest.image_graph is not None
    graph = FixedVisionGraph(folder, manifest, provider) if is_fixed else VisionGraph(folder, manifest, provider)
    return ImageQueue(graph.rows)


def _variants(manifest: Manifest, shapes: ShapeTable) -> tuple[str, ...]:
    if manifest.encoder is not None:
        return tuple(f"{shape.rows} rows" for shape in shapes.fixed)
    if manifest.fused is not None or manifest.speech is not None:
        return tuple(graph.name for graph in manifest.graphs)
    return ("free",) if shapes.free else tuple(str(shape) for shape in (*shapes.fixed, *shapes.prefill))


def _open_draft(
    folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig, open_runtime: OpenRuntime
) -> Drafter:
    """The draft model with a pool as wide as the served one's. BundleError when it cannot guess for this bundle."""
    own = Path(config.draft)
    draft = load_manifest(own)
    if draft.fused is not None:
        raise BundleError("draft: fused graphs cannot guess; compile the draft with another --layout")
    if draft.is_serial:
        raise BundleError(f"draft: {draft.name} runs one sequence at a time, whose state cannot go back")
    if draft.model.recurrent is not None:
        raise BundleError(f"draft: {draft.name} has recurrent layers, whose state cannot go back behind a wrong guess")
    if pool_window_slots(draft):
        raise BundleError(f"draft: {draft.name} keeps some windows of its layers, so nothing behind a guess is left")
    check_same_tokens(folder, manifest, own, draft)
    slots = shapes.max_past if draft.is_free_shape or draft.is_segmented else 0
    plain = replace(config, lora="", draft="", lookup_rows=0, forecast=False, deterministic=False, window=0, sinks=0)
    wanted = settings_for(draft, replace(plain, bundle=config.draft, kv_slots=slots, kv_offload_mb=0))
    runtime = open_runtime(own, draft, choose_shapes(draft, wanted), wanted)
    slot_ms = 0.0 if draft.is_segmented else draft.kv_bytes_per_token / COPY_BYTES_PER_MS
    costs = CostTable(step_times(own, draft, wanted, runtime), slot_ms)
    log.info("draft: %s on %s guesses for %s", draft.name, runtime.device, manifest.name)
    steps, vocab = DraftSteps(runtime, costs, time.perf_counter), min(manifest.model.vocab, draft.model.vocab)
    if draft.diffusion is not None:
        return BlockDraft(steps, draft.diffusion, draft.max_context, vocab, config.draft_tokens)
    return DraftModel(steps, draft.max_context, vocab, config.draft_tokens)


def _tell_self_check(manifest: Manifest, runtime: Runtime) -> None:
    """A line in the log for what a bundle gets wrong of its own sample, and for what contradicts its graphs."""
    for problem in manifest.sample.problems if manifest.sample else ():
        log.warning("%s: %s", manifest.name, problem)
    try:
        found = self_check(manifest, runtime)
    except StepFailed as error:
        log.warning("%s could not read its own sample prompt: %s", manifest.name, error)
        return
    if found is not None and not found.warnings():
        log.info("%s reads its own sample as it should: %s", manifest.name, found)
    for sentence in found.warnings() if found is not None else ():
        log.warning("%s may answer wrongly: %s", manifest.name, sentence)


def settings_for(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """What the settings mean for a bundle. Where graphs have no past, a prefix that is known saves nothing."""
    if manifest.encoder is not None:
        return settings.encoder_settings(manifest, config)
    if manifest.speech is not None:
        return settings.speech_settings(manifest, config)
    if manifest.fused is not None:
        return settings.fused_settings(manifest, config, POOL_BUDGET_BYTES)
    if manifest.reads_whole_context:
        return replace(config, prefix_cache=False, kv_offload_mb=0)
    if manifest.is_serial:
        config = replace(settings.recurrent_settings(manifest, config), prefix_cache=False, kv_offload_mb=0)
        return replace(config, kv_slots=config.kv_slots or config.max_running * manifest.max_context)
    return _segmented_settings(manifest, config) if manifest.is_segmented else config


def _segmented_settings(manifest: Manifest, config: EngineConfig) -> EngineConfig:
    """Caches lie in main memory, so nothing is offloaded to it: what was meant for that makes the pool larger."""
    slots = config.kv_slots or _default_slots(manifest, config)
    if manifest.model.recurrent is not None:
        return replace(settings.recurrent_settings(manifest, config), kv_slots=slots)
    offload = config.kv_offload_mb * 1024**2 // settings.slot_bytes(manifest, config)
    return replace(config, kv_slots=slots + offload, kv_offload_mb=0)


def choose_shapes(manifest: Manifest, config: EngineConfig) -> ShapeTable:
    """The shapes to use: what the bundle has, a free past sized by the settings, one pinned shape if deterministic.
    BundleError for settings that the bundle cannot follow."""
    if manifest.diffusion is not None and (config.lookup_rows > 0 or config.draft):
        setting = "draft" if config.draft else "lookup_rows"
        raise BundleError(f"{setting} guesses the next tokens: {manifest.name} denoises blocks of them")
    shapes = shape_table(manifest, config.max_rows)
    if shapes.longest_text or manifest.speech is not None:
        return shapes
    if shapes.free:
        slots = config.kv_slots or _default_slots(manifest, config)
        step = shapes.past_step
        shapes = replace(shapes, max_past=max(step, -(-slots // step) * step))
    elif config.kv_slots and not shapes.slots:
        raise BundleError("kv_slots cannot be set for a bundle of fixed shapes: the widest graph decides it")
    return pin(shapes, PINNED_ROWS) if config.deterministic else shapes


def _default_slots(manifest: Manifest, config: EngineConfig) -> int:
    """Room for one sequence of full length, at least 4,096 slots, at most 4 GiB."""
    longest = min(config.max_context or manifest.max_context, manifest.max_context)
    affordable = POOL_BUDGET_BYTES // settings.slot_bytes(manifest, config)
    return max(BLOCK_SIZE, min(max(longest, DEFAULT_SLOTS), affordable))
