"""How a bundle stores its weights and what that loses, in words for people."""

from collections.abc import Mapping

from engine.bundle.manifest import Manifest


def form_text(manifest: Manifest) -> str:
    """How weights are stored and their codes were chosen: 'w4a16 good'; no level: rounded to nearest, or floats."""
    return f"{manifest.quant} {manifest.quality.level}" if manifest.quality else manifest.quant


def parity_text(figures: Mapping[str, float]) -> str:
    """What graphs lose against the floats, in words; '' where it was not measured."""
    if "cosine" in figures:
        return f"cosine {figures['cosine']:.6f}, error {figures.get('relative_error', 0.0):.1e}"
    return _loss_text(figures, "") + f", error {figures.get('relative_error', 0.0):.1e}" if figures else ""


def kv_text(figures: Mapping[str, float]) -> str:
    """What rounded caches lose against float ones, in words; '' where it was not measured."""
    if "kv_cosine" in figures:
        return f"cosine {figures['kv_cosine']:.6f}"
    return _loss_text(figures, "kv_") if "kv_kl" in figures else ""


def _loss_text(figures: Mapping[str, float], prefix: str) -> str:
    """'top-1 99.1 % (98.2 to 99.8), KL 1.20e-02 (1.05e-02 to 1.37e-02)': earlier bundles have no intervals."""
    top1, kl = (figures.get(f"{prefix}{name}", 0.0) for name in ("top1", "kl"))
    same, lost = _interval_text(figures, f"{prefix}top1", 100, ".1f"), _interval_text(figures, f"{prefix}kl", 1, ".2e")
    return f"top-1 {100 * top1:.1f} %{same}, KL {kl:.2e}{lost}"


def _interval_text(figures: Mapping[str, float], name: str, factor: int, form: str) -> str:
    low, high = (figures.get(f"{name}_{end}") for end in ("low", "high"))
    return "" if low is None or high is None else f" ({factor * low:{form}} to {factor * high:{form}})"
