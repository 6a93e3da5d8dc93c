"""What can be learned at all; needs no torch."""

from importlib.util import find_spec

from engine.models.network import Network


def missing_extra() -> str:
    """Why nothing can be learned in this environment; '' when it can."""
    return "" if find_spec("torch") else "needs one more package: pip install 'hexserve[learn]'"


def unsupported(network: Network) -> str:
    """Why a network has no definition in torch here; '' when it has."""
    if network.details.diffusion is not None:
        return f"does not learn what denoises blocks ({network.spec.family})"
    if len(network.spec.attention_layers) < network.spec.layers:
        return f"does not learn recurrent layers ({network.spec.family}); good is for all"
    return ""
