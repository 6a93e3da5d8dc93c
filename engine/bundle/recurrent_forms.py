"""The tensors of the recurrent graph of a segmented bundle, and what linear graphs exchange with it.

Legend: N = rows, C = channels, W = kernel, H = value heads, K = key size, V = value size.
"""

from engine.bundle.forms import FREE_ROWS, Form
from engine.bundle.recurrent import RecurrentSpec

RECURRENT = "recurrent"
CONV_IN, DECAY, BETA, OUT = "conv_in", "decay", "beta", "recurrent_out"
GATE_IN, GATE_OUT = "gate_in", "gate_out"  # of what attention or recurrence gives, from the layer's start to its end
CONV_WEIGHT, TAIL, MEMORY = "conv_weight", "conv_state", "state"
TAIL_OUT, MEMORY_OUT = "conv_state_out", "state_out"
FLOAT = "float32"


def started_forms(spec: RecurrentSpec) -> dict[str, Form]:
    """What the start of a layer gives: conv_in before the convolution, decay as a logarithm, the gate for the end."""
    return _step_forms(spec) | {GATE_OUT: (FLOAT, (1, FREE_ROWS, spec.value_width))}


def finished_forms(spec: RecurrentSpec, rows: str) -> dict[str, Form]:
    """What the end of a layer takes."""
    wide: Form = (FLOAT, (1, rows, spec.value_width))
    return {OUT: wide, GATE_IN: wide}


def recurrent_forms(spec: RecurrentSpec) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of the graph that takes rows of one sequence, and its state, one layer further."""
    tail: Form = (FLOAT, (1, *spec.tail_shape))
    memory: Form = (FLOAT, (1, *spec.memory_shape))
    weight: Form = (FLOAT, (spec.channels, 1, spec.kernel))
    inputs = _step_forms(spec) | {CONV_WEIGHT: weight, TAIL: tail, MEMORY: memory}
    return inputs, {OUT: (FLOAT, (1, FREE_ROWS, spec.value_width)), TAIL_OUT: tail, MEMORY_OUT: memory}


def _step_forms(spec: RecurrentSpec) -> dict[str, Form]:
    heads: Form = (FLOAT, (1, FREE_ROWS, spec.value_heads))
    return {CONV_IN: (FLOAT, (1, FREE_ROWS, spec.channels)), DECAY: heads, BETA: heads}
