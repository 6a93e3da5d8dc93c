"""The stage that measures a segmented bundle: what the weights lose, what int8 caches would lose, and which it gets."""

from dataclasses import replace

from engine.bundle.kv_scales import KV_SCALES, write_kv_scales
from engine.bundle.manifest import Manifest, describe_file
from engine.compile.arguments import KvType
from engine.compile.baseline import baseline_figures
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.layout import tries_int8
from engine.compile.parity import Parity, compare_logits
from engine.compile.segments.cache_choice import CacheLoss, CacheMemory, choose_kv, float_cache_bytes
from engine.compile.segments.kv_caches import Float32, float_attention, int8_attention, measured_scales
from engine.compile.segments.parity import CHUNK_ROWS, segment_logits
from engine.compile.stages import check_exact, float_logits, held_out_texts, parity_figures
from engine.isolation.memory import usable_memory


def segment_losses_stage(work: Compilation) -> None:
    """Run the linear graphs over float32 caches against the float reference, then, unless told otherwise, over int8
    ones. The choice of caches and the figures of the bundle as it will be are what is kept."""
    draft = describe(work)
    texts = held_out_texts(work, work.arguments.parity_tokens)
    count, tries = sum(map(len, texts)), tries_int8(work.arguments)
    work.progress.stage("parity", (2 + tries) * count, "tokens")
    expected = float_logits(work, texts)
    floats = segment_logits(work.folder, draft, texts, CHUNK_ROWS, float_attention(work.network))
    work.progress.advance(count)
    over_floats = compare_logits(expected, floats)
    check_exact(work.arguments, over_floats)
    work.parity = parity_figures(work, over_floats)
    if tries:
        _try_int8(work, draft, texts, (expected, floats), over_floats)
    work.parity |= baseline_figures(work, texts, expected)


def _try_int8(
    work: Compilation, draft: Manifest, texts: list[list[int]], logits: tuple[Float32, Float32], over_floats: Parity
) -> None:
    """Choose between caches of floats and int8 ones, and keep the figures of those. logits: of the reference and of the
    bundle over caches of floats."""
    expected, floats = logits
    scales = measured_scales(work, draft)
    rounded = segment_logits(work.folder, draft, texts, CHUNK_ROWS, int8_attention(work.network, scales))
    work.progress.advance(sum(map(len, texts)))
    lost = compare_logits(floats, rounded)
    if work.arguments.kv is None:
        kv, reason = choose_kv(CacheLoss(over_floats.kl.value, lost.kl.value), _memory(work, draft))
        work.arguments = replace(work.arguments, kv=kv)
        work.progress.note(reason)
    if work.arguments.kv is KvType.INT8:
        _keep_int8(work, scales, compare_logits(expected, rounded), lost)


def _keep_int8(work: Compilation, scales: Float32, whole: Parity, lost: Parity) -> None:
    write_kv_scales(work.folder, scales)
    work.files[KV_SCALES] = describe_file(work.folder / KV_SCALES)
    figures = parity_figures(work, lost)
    kept = {f"kv_{name}": figures[name] for name in figures.keys() - {"tokens", "relative_error"}}
    work.parity = parity_figures(work, whole) | kept


def _memory(work: Compilation, draft: Manifest) -> CacheMemory:
    weights = sum(entry.bytes for entry in draft.files.values())
    caches = float_cache_bytes(work.network.spec, draft.max_context)
    return CacheMemory(caches, weights, usable_memory())
