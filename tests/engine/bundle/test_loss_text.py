"""What bundles lose, in words."""

import msgspec

from engine.bundle.loss_text import form_text, kv_text, parity_text
from engine.bundle.manifest import load_manifest
from engine.bundle.specs import QualitySpec
from tests.bundles import Bundles


def test_losses_are_told_with_their_intervals() -> None:
    """Bundles of earlier versions have none."""
    figures = {"top1": 0.991, "kl": 0.012, "relative_error": 0.1}
    bounds = {"top1_low": 0.982, "top1_high": 0.9981, "kl_low": 0.0105, "kl_high": 0.0137}
    assert parity_text(figures) == "top-1 99.1 %, KL 1.20e-02, error 1.0e-01"
    told = "top-1 99.1 % (98.2 to 99.8), KL 1.20e-02 (1.05e-02 to 1.37e-02)"
    assert parity_text(figures | bounds) == f"{told}, error 1.0e-01"
    assert kv_text({f"kv_{name}": value for name, value in (figures | bounds).items()}) == told
    assert parity_text({}) == kv_text(figures) == ""


def test_the_form_tells_bundles_of_one_checkpoint_apart(bundles: Bundles) -> None:
    fast = load_manifest(bundles("segments int4"))
    good = msgspec.structs.replace(fast, quality=QualitySpec("good", ("gptq",), 16, 1.0))
    assert [form_text(manifest) for manifest in (fast, good)] == ["int4", "int4 good"]
