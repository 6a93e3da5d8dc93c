"""Where parts of a stored tensor lie."""

from onnx import TensorProto

from engine.compile.quantisation.weight_file import StoredTensor

BIAS = StoredTensor("bias", TensorProto.FLOAT, (10,), "part.data", 4096, 40)


def test_pieces_lie_one_behind_the_other_in_the_same_bytes() -> None:
    found = BIAS.pieces((6, 3, 1))
    assert [(piece.dims, piece.offset, piece.length) for piece in found] == [
        ((6,), 4096, 24),
        ((3,), 4120, 12),
        ((1,), 4132, 4),
    ]
    assert len({piece.name for piece in found}) == 3


def test_equal_pieces_are_parts() -> None:
    assert BIAS.pieces((5, 5)) == [BIAS.part(0, 2), BIAS.part(1, 2)]
