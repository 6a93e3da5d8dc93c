"""What choosing codes takes, from the network's shapes and the number of tokens; told before it begins. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.models.network import Network

TEXT_TOKENS = 512
TOKENS = (32_768, 24_576, 16_384, 12_288, 8_192, 6_144, 5_120, 4_096)  # the first that patience allows, or the last
MOST_TOKENS, LEAST_TOKENS = TOKENS[0], TOKENS[-1]
HEAD_TOKENS = 2_048  # for balancing heads
BEST_TEXTS = 4  # times as many for the best quality
PATIENCE = 760.0  # seconds: more tokens than this allows are not taken
SCALE_TEXTS = 8  # that channel scales are searched on
SCALE_ALPHAS, SCALE_ROWS = 4, 256  # how many are tried, on so many rows of a matrix
# Of two cores that others share: what numpy's float32 product of 2,048 numbers a side did there.
PRODUCTS = 80e9  # multiplications and additions a second
WEIGHT_SECONDS = 1.5e-7
SCALE_SECONDS = 8e-5  # for an input and each of the scales tried
BASE = 300_000_000  # bytes of the compiler itself
FLOAT, DOUBLE = 4, 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds on two cores, bytes of memory at most, and the tokens that both are for."""

    seconds: float
    memory: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Matrices that read the same inputs, stacked."""

    inputs: int
    outputs: int


def estimated(network: Network, has_head: bool) -> Estimate:
    """For as many tokens as patience allows, but no fewer than `LEAST_TOKENS`."""
    estimates = (estimated_for(network, has_head, tokens) for tokens in TOKENS)
    return next(
        (found for found in estimates if found.seconds <= PATIENCE), estimated_for(network, has_head, LEAST_TOKENS)
    )


def estimated_best(network: Network, has_head: bool) -> Estimate:
    """Of the same with all the text that the best quality reads."""
    return estimated_for(network, has_head, BEST_TEXTS * estimated(network, has_head).tokens)


def estimated_for(network: Network, has_head: bool, tokens: int) -> Estimate:
    """Both grow with the tokens and with each size of the network."""
    spec = network.spec
    groups = [group for layer in range(spec.layers) for group in _groups(network, layer)]
    head = [_Group(spec.hidden, spec.vocab)] if has_head else []
    products = sum(_products(group, tokens) for group in (*groups, *head))
    attention = 4 * tokens * TEXT_TOKENS * network.query_width * len(spec.attention_layers)
    products += 2 * attention + sum(_scale_products(group) for group in groups)
    weights = sum(group.inputs * group.outputs for group in (*groups, *head))
    tried = SCALE_ALPHAS * SCALE_SECONDS * sum(group.inputs for group in groups)
    seconds = products / PRODUCTS + weights * WEIGHT_SECONDS + tried
    return Estimate(seconds, _memory(network, groups, tokens), tokens)


def estimated_pass(network: Network) -> Estimate:
    """Of one pass in floats over the tokens that heads are balanced on."""
    spec, tokens = network.spec, HEAD_TOKENS
    memory = FLOAT * (tokens * (3 * spec.hidden + 3 * spec.ffn) + 2 * spec.hidden * spec.ffn)
    return Estimate(spec.parameters * tokens / PRODUCTS, memory, tokens)


def minutes_text(seconds: float) -> str:
    """'40 s', '12 min'."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _groups(network: Network, layer: int) -> Iterator[_Group]:
    spec = network.spec
    if layer in spec.attention_layers:
        gate = network.query_width if spec.has_output_gate else 0
        yield _Group(spec.hidden, network.query_width + gate + 2 * network.key_width)
        yield _Group(network.query_width, spec.hidden)
    elif spec.recurrent is not None:
        yield _Group(spec.hidden, spec.recurrent.channels + spec.recurrent.value_width)
        yield _Group(spec.recurrent.value_width, spec.hidden)
    yield _Group(spec.hidden, 2 * spec.ffn)
    yield _Group(spec.ffn, spec.hidden)


def _products(group: _Group, tokens: int) -> float:
    """Two passes; two correlations of the inputs; the factor, the target, compensation, refinement and the errors."""
    n, rows = float(group.inputs), float(group.outputs)
    return 4 * tokens * n * rows + 2 * tokens * n * n + 6 * n**3 + 17 * rows * n * n


def _scale_products(group: _Group) -> float:
    """A pass, the correlations of the inputs, their factor, and compensation of a sample of rows for each candidate."""
    n, tokens = float(group.inputs), SCALE_TEXTS * TEXT_TOKENS
    return tokens * n * (n + group.outputs) + 3 * n**3 + 3 * SCALE_ALPHAS * SCALE_ROWS * n * n


def _memory(network: Network, groups: list[_Group], tokens: int) -> int:
    """Streams of all tokens, then the largest group: its matrix in several forms, and the correlations."""
    spec = network.spec
    widest = max(group.inputs for group in groups)
    streams = 2 * tokens * (3 * spec.hidden + widest) * FLOAT
    largest = max(group.inputs * group.outputs for group in groups)
    return BASE + streams + 12 * largest * FLOAT + 8 * widest * widest * DOUBLE
