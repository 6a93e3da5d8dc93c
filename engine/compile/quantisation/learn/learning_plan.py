"""What can be learned at all, how much of it on a machine in reasonable time, and at which rates; needs no torch."""

from dataclasses import dataclass, replace
from importlib.util import find_spec

from engine.models.network import Network

BATCH_TOKENS = 1024  # of one step
HELD_BACK = 8  # every so many-th text
WARM_UP = 10  # steps
JUDGEMENTS = 4  # how often a state is judged
HEAD_TOKENS = 256  # whose logits are in memory at once
# Of the cross entropy of the text's tokens, beside all of the divergence. What it wins grows with it, what it costs
# with its square: with 0.03 the text was learned, and the divergence was no better than before.
TEXT_SHARE = 0.01
MOST_DIVERGENCE = 1.01  # of the given state's: whatever the text's tokens win, a state that has more is not taken


@dataclass(frozen=True, slots=True)
class LearningRates:
    """steps of Adam; scales: its rate for logarithms of scales; places: for numbers that round to codes, 0 = fixed."""

    steps: int
    scales: float
    places: float


# In rounds. More steps of places turn more codes than calibration text can judge.
LAYER_RATES = (LearningRates(steps=100, scales=1e-3, places=2e-3),)
MODEL_RATES = (LearningRates(steps=240, scales=1e-3, places=0.0),)


def missing_extra() -> str:
    """Why nothing can be learned in this environment; '' when it can."""
    return "" if find_spec("torch") else "needs one more package: pip install 'hexserve[learn]'"


def unsupported(network: Network) -> str:
    """Why a network has no definition in torch here; '' when it has."""
    if network.details.diffusion is not None:
        return f"does not learn what denoises blocks ({network.spec.family})"
    if len(network.spec.attention_layers) < network.spec.layers:
        return f"does not learn recurrent layers ({network.spec.family}); good is for all"
    own_scale = "scores with a scale of their own" if network.details.multipliers.attention else ""
    if unusual := network.unlike_layers or network.other_stream or own_scale:
        return f"does not learn {unusual} ({network.spec.family})"
    return ""


PATIENCE = 7200.0  # seconds of each of both: fewer steps where all would take more
LEAST_STEPS = 20  # with fewer nothing is learned
# On two cores of a server: multiplications and additions a second, and a step's work on one weight beside them.
PRODUCTS = 60e9
WEIGHT_SECONDS = 2e-8
SHARE = 0.8  # of the memory, that this may take
FLOAT = 4
TORCH = 270_000_000  # bytes of torch itself, and of its threads, beside those of the compiler


@dataclass(frozen=True, slots=True)
class LearningPlan:
    """layers: the rounds in which each layer is learned; model: those of the whole model; () = it is not.

    skipped: what is not learned, and why. seconds on two cores; memory: bytes at most, without the compiler itself.
    beside: those of them that are taken while codes are chosen, layer by layer.
    """

    layers: tuple[LearningRates, ...]
    model: tuple[LearningRates, ...]
    skipped: tuple[str, ...]
    seconds: float
    memory: int
    beside: int = 0

    @property
    def methods(self) -> tuple[str, ...]:
        """What is done, in order."""
        layers = ("rounding and scales learned by layer",) if self.layers else ()
        return (*layers, *(("scales learned end to end",) if self.model else ()))

    @property
    def layer_steps(self) -> int:
        """Of one layer."""
        return sum(rates.steps for rates in self.layers)


NOTHING = LearningPlan((), (), (), 0.0, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """What could be learned. step, beside: seconds of one step and of all but the steps."""

    name: str
    rounds: tuple[LearningRates, ...]
    step: float
    beside: float
    memory: int

    def affordable(self) -> tuple[LearningRates, ...]:
        most = int(PATIENCE / self.step / len(self.rounds))
        return tuple(replace(rates, steps=min(rates.steps, most)) for rates in self.rounds)

    def reason(self, machine: int) -> str:
        """Why it is not learned; '' when it is."""
        if min(rates.steps for rates in self.affordable()) < LEAST_STEPS:
            hours = LEAST_STEPS * len(self.rounds) * self.step / 3600
            return f"{self.name}: {hours:.0f} hours would be the least"
        if machine and self.memory > SHARE * machine:
            return f"{self.name}: it would take {self.memory / 1e9:.1f} GB of the machine's {machine / 1e9:.1f}"
        return ""


def planned(network: Network, has_logits: bool, tokens: int, machine: int) -> LearningPlan:
    """For so many tokens of text. machine: bytes of memory, 0 where unknown. has_logits: the bundle predicts tokens."""
    layers, model = _layers(network, tokens), _model(network, tokens)
    parts = [layers, model] if has_logits else [layers]
    reasons = [part.reason(machine) for part in parts]
    chosen = {part.name: part.affordable() for part, reason in zip(parts, reasons, strict=True) if not reason}
    taken = [part for part in parts if part.name in chosen]
    steps = sum(rates.steps * part.step for part in taken for rates in chosen[part.name])
    return LearningPlan(
        chosen.get(layers.name, ()),
        chosen.get(model.name, ()),
        tuple(filter(None, reasons)),
        steps + sum(part.beside for part in taken),
        max((part.memory for part in taken), default=0),
        layers.memory if layers in taken else 0,
    )


def _layers(network: Network, tokens: int) -> _Part:
    """The way back is two products for each of the way there; what is held back is judged in each round."""
    weights = _layer_weights(network)
    everything = weights * network.spec.layers
    step = everything * (6 * BATCH_TOKENS / PRODUCTS + WEIGHT_SECONDS)
    judged = len(LAYER_RATES) * (1 + JUDGEMENTS) * tokens / HELD_BACK
    beside = 2 * everything * (judged + tokens) / PRODUCTS
    return _Part("layers are not learned", LAYER_RATES, step, beside, _layer_memory(network, weights, tokens))


def _model(network: Network, tokens: int) -> _Part:
    """As of layers, with everything computed once more on the way back, and the float head's logits.

    What is held back is judged twice more, by its KL alone.
    """
    weights, head = _layer_weights(network), network.spec.vocab * network.spec.hidden
    everything = weights * network.spec.layers + head
    step = (8 * everything + 2 * head) * BATCH_TOKENS / PRODUCTS + everything * WEIGHT_SECONDS / 2
    judged = (2 + len(MODEL_RATES) * (1 + JUDGEMENTS)) * tokens / HELD_BACK
    beside = 2 * everything * (judged + tokens) / PRODUCTS
    return _Part(
        "scales are not learned end to end", MODEL_RATES, step, beside, _model_memory(network, weights, tokens)
    )


def _layer_weights(network: Network) -> int:
    spec = network.spec
    return spec.hidden * (network.query_outputs + network.query_width + 2 * network.key_width + 3 * spec.ffn)


def _layer_memory(network: Network, weights: int, tokens: int) -> int:
    """Places, their gradients and two averages of these; floats on the way; the streams, once more in torch."""
    return TORCH + 40 * weights + 4 * tokens * network.spec.hidden * FLOAT + _activations(network)


def _model_memory(network: Network, weights: int, tokens: int) -> int:
    """Codes and scales of all; floats and gradients of one layer or of the head; logits of some tokens."""
    spec = network.spec
    head = spec.vocab * spec.hidden
    kept = 2 * weights * spec.layers + head * (FLOAT + 2)
    working = 20 * max(weights, head)
    logits = 6 * HEAD_TOKENS * spec.vocab * FLOAT
    streams = (2 * tokens + spec.layers * BATCH_TOKENS) * spec.hidden * FLOAT
    return TORCH + kept + working + logits + streams + _activations(network)


def _activations(network: Network) -> int:
    """What the way back through one layer needs of the way there."""
    spec = network.spec
    return BATCH_TOKENS * (8 * spec.hidden + 6 * network.query_width + 6 * spec.ffn) * FLOAT
