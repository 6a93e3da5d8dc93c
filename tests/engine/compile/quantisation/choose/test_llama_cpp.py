"""llama.cpp's roundings: by the gguf package where it has them, by what is left of a matrix where it has not."""

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.compile.quantisation.choose.wide import q4_0, q4_0_of, q4_k, q4_k_m_of
from engine.models.family import read_network
from tests.engine.models.test_family import GOOD

WEIGHT = np.random.default_rng(0).standard_normal((16, 512)).astype(np.float32)


def test_q4_0_and_its_likes_are_those_of_gguf() -> None:
    for function, inputs, kind in ((q4_0, 512, GGMLQuantizationType.Q4_0), (q4_k, 96, GGMLQuantizationType.Q5_0)):
        weight = np.ascontiguousarray(WEIGHT[:, :inputs])
        np.testing.assert_array_equal(function(weight), dequantize(quantize(weight, kind), kind))
    np.testing.assert_array_equal(q4_0(WEIGHT[:, :50]), WEIGHT[:, :50])


def test_q4_k_loses_less_than_q4_0() -> None:
    lost = [float(np.mean(np.square(function(WEIGHT) - WEIGHT))) for function in (q4_0, q4_k)]
    assert lost[1] < lost[0]


def test_q4_k_m_leaves_half_of_the_values_and_closing_matrices() -> None:
    network = read_network({**GOOD, "num_hidden_layers": 16}, 0)
    plain, mixed = q4_0_of(network), q4_k_m_of(network)
    assert len(plain) == 16 * 7
    left = {name.rsplit(".", 2)[1] for name in plain.keys() - mixed.keys()}
    assert left == {"v_proj", "down_proj"}
    assert len(plain) - len(mixed) == 2 * 8
