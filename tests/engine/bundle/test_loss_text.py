"""What bundles lose, in words."""

from engine.bundle.loss_text import kv_text, parity_text


def test_losses_are_told_with_their_intervals() -> None:
    """Bundles of earlier versions have none."""
    figures = {"top1": 0.991, "kl": 0.012, "relative_error": 0.1}
    bounds = {"top1_low": 0.982, "top1_high": 0.9981, "kl_low": 0.0105, "kl_high": 0.0137}
    assert parity_text(figures) == "top-1 99.1 %, KL 1.20e-02, error 1.0e-01"
    told = "top-1 99.1 % (98.2 to 99.8), KL 1.20e-02 (1.05e-02 to 1.37e-02)"
    assert parity_text(figures | bounds) == f"{told}, error 1.0e-01"
    assert kv_text({f"kv_{name}": value for name, value in (figures | bounds).items()}) == told
    assert parity_text({}) == kv_text(figures) == ""
