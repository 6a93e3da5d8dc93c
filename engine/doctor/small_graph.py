"""A graph small enough to compile in a moment: y = softmax(x W), half precision. Written without the onnx package."""

import numpy as np
from numpy.typing import NDArray

from engine.qnn.protobuf import blob, number

ROWS, WIDTH = 8, 32
FLOAT16 = 10  # onnx.TensorProto.FLOAT16
IR_VERSION, OPSET = 10, 18
INPUT, OUTPUT = "x", "y"


def small_graph() -> bytes:
    """An ONNX file: x [1, 8, 32] float16 -> y of the same shape."""
    weight = weights()
    tensor = number(1, WIDTH) + number(1, WIDTH) + number(2, FLOAT16) + blob(8, "w") + blob(9, weight.tobytes())
    nodes = _node("MatMul", (INPUT, "w"), "scores") + _node("Softmax", ("scores",), OUTPUT)
    graph = nodes + blob(2, "doctor") + blob(5, tensor) + blob(11, _value(INPUT)) + blob(12, _value(OUTPUT))
    return number(1, IR_VERSION) + blob(2, "hexserve") + blob(7, graph) + blob(8, blob(1, "") + number(2, OPSET))


def weights() -> NDArray[np.float16]:
    """W [32, 32]."""
    return np.sin(np.arange(WIDTH * WIDTH, dtype=np.float32)).reshape(WIDTH, WIDTH).astype(np.float16)


def example() -> NDArray[np.float16]:
    """An input [1, 8, 32]."""
    return np.cos(np.arange(ROWS * WIDTH, dtype=np.float32)).reshape(1, ROWS, WIDTH).astype(np.float16)


def expected() -> NDArray[np.float32]:
    """What y must be for `example`, by its definition."""
    scores = example().astype(np.float32) @ weights().astype(np.float32)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True)
    return result


def _node(kind: str, inputs: tuple[str, ...], output: str) -> bytes:
    body = b"".join(blob(1, name) for name in inputs) + blob(2, output) + blob(3, kind.lower()) + blob(4, kind)
    return blob(1, body)


def _value(name: str) -> bytes:
    dims = b"".join(blob(1, number(1, size)) for size in (1, ROWS, WIDTH))
    return blob(1, name) + blob(2, blob(1, number(1, FLOAT16) + blob(2, dims)))
