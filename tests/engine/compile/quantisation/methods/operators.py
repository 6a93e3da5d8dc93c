"""A matrix to round, and one operator run by onnxruntime."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper


def weights(outputs: int = 24, inputs: int = 96) -> np.ndarray:
    """A matrix with one row of zeros and one outlier."""
    matrix = np.random.default_rng(1).standard_normal((outputs, inputs)).astype(np.float32)
    matrix[3], matrix[5, 7] = 0, 30
    return matrix


def run_node(
    node: object, tensors: dict[str, np.ndarray], x: np.ndarray, outputs: int, kind: int = TensorProto.FLOAT
) -> np.ndarray:
    """One operator on the CPU provider."""
    entry = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))
    result = helper.make_tensor_value_info("y", kind, [len(x), outputs])
    initializers = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph([node], "one", [entry], [result], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
