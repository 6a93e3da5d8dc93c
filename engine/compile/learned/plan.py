"""How much is learned on a machine in reasonable time, and what that takes; told before it begins. Pure."""

from dataclasses import dataclass, replace

from engine.compile.learned.descent import JUDGEMENTS, Rates
from engine.compile.learned.layer import RATES as LAYER_RATES
from engine.compile.learned.model import HEAD_TOKENS
from engine.compile.learned.model import RATES as MODEL_RATES
from engine.compile.learned.texts import BATCH_TOKENS, HELD_BACK
from engine.models.network import Network

PATIENCE = 7200.0  # seconds of each of both: fewer steps where all would take more
LEAST_STEPS = 20  # with fewer nothing is learned
# On two cores of a server: multiplications and additions a second, and a step's work on one weight beside them.
PRODUCTS = 60e9
WEIGHT_SECONDS = 2e-8
SHARE = 0.8  # of the memory, that this may take
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """layer, model: what is learned of each layer and of the whole, None = nothing; skipped: why.

    seconds on two cores; memory: bytes at most.
    """

    layer: Rates | None
    model: Rates | None
    skipped: str
    seconds: float
    memory: int


def planned(network: Network, has_head: bool, tokens: int, machine: int) -> Plan:
    """For so many tokens of text. machine: bytes of memory, 0 where unknown. has_head: the head's codes are learned."""
    weights = _layer_weights(network)
    head = network.spec.vocab * network.spec.hidden
    all_weights = weights * network.spec.layers + head
    judged = JUDGEMENTS * tokens / HELD_BACK
    # Two passes on the way back, and what is judged is computed once; end to end everything is computed once more.
    layers = network.spec.layers
    of_layer = layers * (6 * weights * BATCH_TOKENS / PRODUCTS + weights * WEIGHT_SECONDS)
    of_model = (8 * all_weights + 2 * head) * BATCH_TOKENS / PRODUCTS + all_weights * WEIGHT_SECONDS / 2
    beside = (2 * weights * layers * (judged + 2 * tokens) / PRODUCTS, 2 * all_weights * (judged + tokens) / PRODUCTS)
    layer, model = _affordable(LAYER_RATES, of_layer), _affordable(MODEL_RATES, of_model)
    memories = _layer_memory(network, weights, tokens), _model_memory(network, weights, tokens, has_head)
    skipped = ""
    if model is None:
        skipped = f"{LEAST_STEPS} steps would take {LEAST_STEPS * of_model / 3600:.0f} hours"
    elif machine and memories[1] > SHARE * machine:
        model, skipped = None, f"it would take {memories[1] / 1e9:.0f} GB of the machine's {machine / 1e9:.0f}"
    chosen = [(layer, of_layer, beside[0], memories[0]), (model, of_model, beside[1], memories[1])]
    taken = [(rates.steps * step + rest, memory) for rates, step, rest, memory in chosen if rates is not None]
    return Plan(
        layer, model, skipped, sum(seconds for seconds, _ in taken), max((size for _, size in taken), default=0)
    )


def _affordable(rates: Rates, step_seconds: float) -> Rates | None:
    steps = min(rates.steps, int(PATIENCE / step_seconds))
    return replace(rates, steps=steps) if steps >= LEAST_STEPS else None


def _layer_weights(network: Network) -> int:
    spec = network.spec
    queries = network.query_width * (3 if network.details.has_output_gate else 2)  # and the output projection
    return spec.hidden * (queries + 2 * network.key_width + 3 * spec.ffn)


def _layer_memory(network: Network, weights: int, tokens: int) -> int:
    """Places, their gradients and two averages of these; floats on the way; the streams, once more in torch."""
    return 40 * weights + 4 * tokens * network.spec.hidden * FLOAT + _activations(network)


def _model_memory(network: Network, weights: int, tokens: int, has_head: bool) -> int:
    """Codes and scales of all; floats and gradients of one layer or of the head; logits of some tokens."""
    spec = network.spec
    head = spec.vocab * spec.hidden
    kept = 2 * weights * spec.layers + head * (FLOAT + 2)
    working = max(20 * weights, 20 * head if has_head else 0)
    logits = 6 * HEAD_TOKENS * spec.vocab * FLOAT
    streams = (2 * tokens + spec.layers * BATCH_TOKENS) * spec.hidden * FLOAT
    return kept + working + logits + streams + _activations(network)


def _activations(network: Network) -> int:
    """What the way back through one layer needs of the way there."""
    spec = network.spec
    return BATCH_TOKENS * (8 * spec.hidden + 6 * network.query_width + 6 * spec.ffn) * FLOAT
