"""What a bundle's manifest says of it, and whether it predicts next tokens at all."""

from dataclasses import dataclass
from pathlib import Path

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.task import ModelTask
from engine.compile.checks import longest_sequence
from engine.compile.parity import widest_shape
from engine.errors import BundleError


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """form: how its weights are stored and how their codes were chosen. size: bytes on disk. longest: most tokens.

    A form without a level was rounded to nearest, or has nothing to choose.
    """

    manifest: Manifest
    form: str
    size: int
    longest: int


def bundle_facts(name: str, folder: Path) -> BundleFacts:
    """Of a bundle that predicts next tokens; BundleError for another. name: what the caller calls it."""
    manifest = load_manifest(folder)
    if reason := _unfit(manifest):
        raise BundleError(f"{name} {reason}")
    size = sum(entry.bytes for entry in manifest.files.values())
    level = f" {manifest.quality.level}" if manifest.quality else ""
    return BundleFacts(manifest, f"{manifest.quant}{level}", size, _longest(manifest))


def _unfit(manifest: Manifest) -> str:
    """Why a bundle has no perplexity, '' when it has one."""
    if manifest.encoder is not None:
        return "is a text encoder: it predicts no next token"
    if manifest.task is ModelTask.EMBED:
        return "makes embeddings: it predicts no next token"
    if manifest.diffusion is not None:
        return "denoises blocks: it predicts no next token"
    return ""


def _longest(manifest: Manifest) -> int:
    if manifest.fused is not None:
        return min(manifest.max_context, manifest.fused.columns)
    shape = None if manifest.is_segmented else widest_shape(manifest)
    return min(manifest.max_context, longest_sequence((shape,))) if shape else manifest.max_context
