"""A compilation in words: the manifest of what has been made, and one line for the user."""

import importlib.metadata
import platform
import time
from pathlib import Path

from engine.bundle.conv_weights import CONV_WEIGHTS
from engine.bundle.kv_scales import KV_SCALES
from engine.bundle.manifest import FORMAT_VERSION, Manifest
from engine.bundle.task import ModelTask
from engine.compile.arguments import DEFAULT_SPLIT, CompileArguments, Layout
from engine.compile.compilation import Compilation
from engine.compile.fused.plan import fused_spec
from engine.compile.layout import kv_type, layout_of
from engine.compile.lora import lora_modules
from engine.files.names import GGUF_SUFFIX


def describe(work: Compilation) -> Manifest:
    """The manifest of what has been made so far."""
    arguments = work.arguments
    is_segmented = layout_of(arguments) is Layout.SEGMENTS
    assert work.text is not None
    return Manifest(
        format_version=FORMAT_VERSION,
        name=arguments.name or model_name(arguments.source),
        target=arguments.target.value,
        quant=arguments.quant.value,
        split=split_text(arguments),
        created=int(time.time()),
        model=work.network.spec,
        graphs=tuple(work.graphs),
        kv_dtype=kv_type(arguments).value if is_segmented else work.pipeline.kv_dtype,
        max_context=work.network.compiled_context,
        text=work.text,
        files=work.files,
        versions=tool_versions() | ({"onnxruntime-qnn": _version("onnxruntime-qnn")} if arguments.is_npu else {}),
        parity=work.parity,
        source=model_name(arguments.source),
        npu=work.npu,
        fused=fused_spec(arguments) if layout_of(arguments) is Layout.FUSED else None,
        kv_scales=KV_SCALES if KV_SCALES in work.files else "",
        lora=lora_modules(work.network) if arguments.lora else (),
        conv_weights=CONV_WEIGHTS if CONV_WEIGHTS in work.files else "",
        diffusion=work.network.details.diffusion,
        task=arguments.task or ModelTask.GENERATE,
        pooling=work.pooling,
        rerank=work.rerank,
        quality=work.quality,
        encoder=work.network.encoder.spec if work.network.encoder else None,
    )


def model_name(source: Path) -> str:
    """A folder's name, or a GGUF file's without its suffix; a link to one has a better name than what it links to."""
    return source.stem if source.suffix == GGUF_SUFFIX else source.resolve().name


def split_text(arguments: CompileArguments) -> str:
    """Where the network is cut into graphs, in one word."""
    layout = layout_of(arguments)
    if layout is not Layout.POOL:
        return layout.value
    return (arguments.split or DEFAULT_SPLIT).value


def tool_versions() -> dict[str, str]:
    """Versions of what made the bundle; hexserve is '0' when run from a tree that is not installed."""
    names = ("hexserve", "onnx", "onnxruntime", "numpy")
    return {name: _version(name) for name in names} | {"python": platform.python_version()}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def summary(manifest: Manifest) -> str:
    """One line for the end."""
    size = sum(entry.bytes for entry in manifest.files.values())
    where = manifest.npu.parity_on if manifest.npu else "CPU"
    made = f"{manifest.name}: {len(manifest.graphs)} graphs, {size / 1e6:.1f} MB; against float: "
    if not manifest.parity:
        return made + where
    figures = parity_text(manifest.parity)
    if {"kv_kl", "kv_cosine"} & manifest.parity.keys():
        figures += f"; {manifest.kv_dtype} caches against float ones: {kv_text(manifest.parity)}"
    return f"{made}{figures} ({manifest.parity['tokens']:.0f} tokens, {where})"


def kv_text(figures: dict[str, float]) -> str:
    """What rounded caches lose."""
    if "kv_cosine" in figures:
        return f"cosine {figures['kv_cosine']:.6f}"
    return f"top-1 {100 * figures['kv_top1']:.1f} %, KL {kl_text(figures, 'kv_')}"


def parity_text(figures: dict[str, float]) -> str:
    """What the graphs lose against the floats."""
    if "cosine" in figures:
        return f"cosine {figures['cosine']:.6f}, error {figures['relative_error']:.1e}"
    return f"top-1 {100 * figures['top1']:.1f} %, KL {kl_text(figures, '')}, error {figures['relative_error']:.1e}"


def kl_text(figures: dict[str, float], prefix: str) -> str:
    """'1.20e-02 (1.05e-02 to 1.37e-02)': bundles of earlier versions have no interval."""
    kl, low, high = (figures.get(f"{prefix}{name}") for name in ("kl", "kl_low", "kl_high"))
    interval = "" if low is None or high is None else f" ({low:.2e} to {high:.2e})"
    return f"{kl:.2e}{interval}"
