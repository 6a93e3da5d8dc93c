"""The test graph against onnx and its definition."""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from engine.doctor.examination import example, expected, small_graph


def test_the_small_graph_is_onnx_and_does_what_it_says() -> None:
    model = onnx.load_from_string(small_graph())
    onnx.checker.check_model(model, full_check=True)
    (y,) = ReferenceEvaluator(model).run(None, {"x": example()})
    np.testing.assert_allclose(np.asarray(y, np.float32), expected(), atol=2e-3)
