"""The names of cache tensors, in every spelling that is read."""

from engine.bundle.tensors import Place, place_of


def test_the_place_of_a_tensor() -> None:
    assert place_of("past_key_3_in", "_in") == Place(0, 3)
    assert place_of("past_value_3_h2_out", "_out") == Place(1, 3, 2)
    assert place_of("past_nativekvcache__value_0_head_11_in", "_in") == Place(1, 0, 11)
    assert place_of("past_key_3_in", "_out") is None
    assert place_of("past_key_3_head2_in", "_in") is None
