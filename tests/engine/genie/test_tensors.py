"""The seven kinds of graphs, and names that no kind may have."""

import pytest

from engine.bundle.manifest import GraphKind
from engine.errors import BundleError
from engine.genie.roles import Meaning, Role, classify, meaning

ROW = ("attention_mask", "position_ids_cos", "position_ids_sin")
CACHE_IN = ("past_key_0_in", "past_value_0_in")
CACHE_OUT = ("past_key_0_out", "past_value_0_out")


@pytest.mark.parametrize(
    ("inputs", "outputs", "kind"),
    [
        (("input_ids",), ("_model_embed_tokens_Gather_Gather_output_0",), GraphKind.LUT),
        (("add_7", *ROW, *CACHE_IN), (*CACHE_OUT, "add_9"), GraphKind.DECODER),
        (("add_7", *ROW, *CACHE_IN), (*CACHE_OUT, "logits"), GraphKind.DECODER),
        (("input_ids", *ROW, *CACHE_IN), (*CACHE_OUT, "add_9"), GraphKind.DECODER),
        (("add_7", *ROW, *CACHE_IN), CACHE_OUT, GraphKind.DECODER_PREFILL),
        (("add_9",), ("logits",), GraphKind.LMHEAD),
        (("input_ids", *ROW, *CACHE_IN), ("logits", *CACHE_OUT), GraphKind.DEFAULT),
        (("input_ids", "attention_mask"), ("logits",), GraphKind.DEFAULT),
        (("pixel_values", "position_ids_cos"), ("image_features",), GraphKind.IMAGE_ENCODER),
        (("x", "y"), ("z",), GraphKind.NONE),
        ((), (), GraphKind.NONE),
        (("input_ids",), (), GraphKind.NONE),
    ],
)
def test_kind_from_names(inputs: tuple[str, ...], outputs: tuple[str, ...], kind: GraphKind) -> None:
    assert classify(inputs, outputs) is kind


def test_the_order_of_tensors_does_not_matter() -> None:
    assert classify(("past_key_0_in", "input_ids"), ("past_key_0_out", "logits")) is GraphKind.DEFAULT


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("past_key_13_in", Meaning(Role.KEY, 13)),
        ("past_value_0_out", Meaning(Role.VALUE, 0)),
        ("past_nativekvcache__key_2_in", Meaning(Role.KEY, 2)),
        ("past_key_3_h2_in", Meaning(Role.KEY, 3, 2)),
        ("past_nativekvcache__value_3_head_7_out", Meaning(Role.VALUE, 3, 7)),
        ("cache_index", Meaning(Role.CACHE_INDEX)),
        ("_model_model_layers_9_Add_1_output_0", Meaning(Role.HIDDEN)),
        ("add_21844", Meaning(Role.HIDDEN)),
    ],
)
def test_meaning(name: str, expected: Meaning) -> None:
    assert meaning(name) == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ssm_state_3_in", "recurrent layer"),
        ("recurrent_state_in", "recurrent layer"),
        ("swa_mask", "sliding window"),
        ("swa_key_in", "sliding window"),
        ("per_layer_inputs_3", "extra embedding"),
        ("past_group1__key_3_in", "cache under a name that is not known"),
        ("past_key_3_head2_in", "cache under a name that is not known"),
        ("visual_embeds", "image features"),
    ],
)
def test_contracts_that_cannot_be_served(name: str, reason: str) -> None:
    with pytest.raises(BundleError, match=f"tensor {name} .*{reason}"):
        meaning(name)


@pytest.mark.parametrize("name", ["weight", "lm_head.weight", "lmhead_weight"])
def test_a_heads_weights(name: str) -> None:
    assert meaning(name) == Meaning(Role.WEIGHT)
    assert classify(["hidden_states", name], ["logits"]) is GraphKind.LMHEAD
