"""What cannot be served is refused before anything is loaded, with the tensor's name and the reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.bundle.variant import StepShape
from engine.errors import BundleError
from engine.genie.read import read_genie
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, QnnEncoding
from tests.genie.generator import Generated, Recipe, generate

LAYERS = "part2_of_3.bin"
Change = Callable[[BinaryTensor], BinaryTensor | None]


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(checkpoint, tmp_path_factory.mktemp("made") / "bundle", Recipe(parts=3))


def read(made: Generated, infos: dict[str, BinaryInfo], runtime: str = "") -> None:
    read_genie(made.folder, lambda path: infos[path.name], runtime)


def changed(made: Generated, change: Change, binary: str = LAYERS) -> dict[str, BinaryInfo]:
    """The descriptions with one binary's tensors changed; None removes a tensor."""

    def tensors(given: tuple[BinaryTensor, ...]) -> tuple[BinaryTensor, ...]:
        found = (change(tensor) for tensor in given)
        return tuple(tensor for tensor in found if tensor is not None)

    info = made.infos[binary]
    graphs = tuple(BinaryGraph(graph.name, tensors(graph.inputs), tensors(graph.outputs)) for graph in info.graphs)
    return {**made.infos, binary: msgspec.structs.replace(info, graphs=graphs)}


def renamed(old: str, new: str) -> Change:
    return lambda tensor: msgspec.structs.replace(tensor, name=new) if tensor.name == old else tensor


def with_(name: str, /, **values: object) -> Change:
    return lambda tensor: msgspec.structs.replace(tensor, **values) if tensor.name == name else tensor


KEY = "past_key_0_in"
CHANGES: dict[str, tuple[Change, str]] = {
    "native KV": (
        with_(KEY, data_format=1),
        r"part2_of_3\.bin, graph .*: tensor past_key_0_in is laid out in HMX tiles \(data format 1\)",
    ),
    "another layout": (with_("attention_mask", data_format=7), "attention_mask is laid out in a private layout"),
    "recurrent state": (
        renamed(KEY, "recurrent_state_0_in"),
        "tensor past_key_0_in is missing: what is cached must be read",
    ),
    "a state of another name": (renamed(KEY, "ssm_state_0_in"), "tensor ssm_state_0_in is the state of a recurrent"),
    "a window without its mask": (renamed(KEY, "swa_key_0_in"), "input swa_attention_mask is missing"),
    "a window's mask without dimensions": (
        with_(KEY, name="swa_attention_mask", shape=(), dtype="uint16", encoding=QnnEncoding((0.01,), (-65535,))),
        r"part2_of_3\.bin, graph .*: tensor swa_attention_mask has no dimensions",
    ),
    "a window's tensor of another name": (renamed(KEY, "swa_0_in"), "tensor swa_0_in belongs to sliding window"),
    "several heads as one": (
        renamed(KEY, "past_key_0_h0_in"),
        r"tensor past_key_0_h0_in has shape \[2, 1, 32, \d+\]: several heads under the name of one",
    ),
    "another name for a cache": (
        renamed(KEY, "past_group1__key_0_in"),
        "past_group1__key_0_in is a cache under a name",
    ),
    "positions in place of rotation": (renamed("position_ids_cos", "position_ids"), "position_ids is an extra input"),
    "signed caches": (with_(KEY, dtype="int8"), "tensor past_key_0_in is int8; uint8 or uint16 or"),
    "rotation without its other half": (
        with_("position_ids_sin", shape=(1, 1, 8, 32)),
        r"tensor position_ids_sin has shape \[1, 1, 8, 32\], position_ids_cos has \[1, 1, [18], 16\]",
    ),
    "encodings in and out": (
        with_(KEY, encoding=QnnEncoding((0.5,), (-128,))),
        r"tensors past_key_0_in and past_key_0_out have different encodings \(uint8 .*, scale 0\.5, zero point 128 and",
    ),
    "no scale": (with_(KEY, encoding=None), "tensor past_key_0_in is uint8 and has no scale"),
    "scale for each channel": (
        with_(KEY, encoding=QnnEncoding((0.5, 0.5), (0, 0), 1)),
        "tensor past_key_0_in has a scale for each channel",
    ),
    "mask without zero": (
        with_("attention_mask", encoding=QnnEncoding((0.001,), (5,))),
        r"tensor attention_mask cannot hold 0 \(offset 5\)",
    ),
    "shallow mask": (
        with_("attention_mask", encoding=QnnEncoding((1e-4,), (-65535,))),
        r"tensor attention_mask reaches down to -6\.55 only",
    ),
    "wrong type": (with_("attention_mask", dtype="int32"), "tensor attention_mask is int32; uint8 or uint16 or"),
    "no mask": (renamed("attention_mask", "position"), "tensor position is an extra input"),
    "no rotation": (
        lambda tensor: None if tensor.name == "position_ids_cos" else tensor,
        "input position_ids_cos is missing",
    ),
    "whole context each time": (
        lambda tensor: None if tensor.name == KEY else tensor,
        "tensor past_key_0_in is missing: what is cached must be read",
    ),
    "a batch axis": (with_(KEY, shape=(2, 2, 32, 63)), r"tensor past_key_0_in has shape \[2, 2, 32, 63\]"),
    "another width": (
        with_(KEY, shape=(2, 1, 32, 60)),
        "tensor past_key_0_in has 60 columns in .*; (63|56) are",
    ),
    "hidden state does not fit": (
        with_("_model_embed_tokens_Gather_Gather_output_0", encoding=QnnEncoding((9.0,), (-32768,))),
        r"tensor _model_embed_tokens_Gather_Gather_output_0 of token_ar1_cl64_1_of_3 does not fit",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_tensor(made: Generated, case: str) -> None:
    change, message = CHANGES[case]
    with pytest.raises(BundleError, match=message):
        read(made, changed(made, change))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("steering_vector", (1, 64), "tensor steering_vector is an extra input"),
        ("alpha", (1,), "tensor alpha is an extra input"),
        ("per_layer_inputs_0", (1, 1, 8), "tensor per_layer_inputs_0 is an extra embedding"),
    ],
)
def test_extra_inputs(made: Generated, name: str, shape: tuple[int, ...], message: str) -> None:
    info = made.infos[LAYERS]
    extra = BinaryTensor(name, "float16", shape)
    graphs = tuple(msgspec.structs.replace(graph, inputs=(*graph.inputs, extra)) for graph in info.graphs)
    with pytest.raises(BundleError, match=message):
        read(made, {**made.infos, LAYERS: msgspec.structs.replace(info, graphs=graphs)})


def test_rotation_of_more_than_a_head(made: Generated) -> None:
    def wide(tensor: BinaryTensor) -> BinaryTensor:
        is_rotation = tensor.name.startswith("position_ids")
        return msgspec.structs.replace(tensor, shape=(*tensor.shape[:-1], 32)) if is_rotation else tensor

    infos = {**changed(made, wide), "part3_of_3.bin": changed(made, wide, "part3_of_3.bin")["part3_of_3.bin"]}
    with pytest.raises(BundleError, match=r"position_ids_cos has 32 columns; heads of 32 turn at most 16 pairs"):
        read(made, infos)


LOGITS: dict[str, tuple[Change, str]] = {
    "of the last row only": (
        with_("logits", shape=(1, 1, 384)),
        r"tensor logits has shape \[1, 1, 384\]; \[1, 8, 384\]",
    ),
    "for each channel": (
        with_("logits", encoding=QnnEncoding((1.0, 1.0), (0, 0), 2)),
        "logits has a scale for each channel",
    ),
}


@pytest.mark.parametrize("case", LOGITS)
def test_logits(made: Generated, case: str) -> None:
    change, message = LOGITS[case]
    with pytest.raises(BundleError, match=message):
        read(made, changed(made, change, "part3_of_3.bin"))


def each_graph(made: Generated, binary: str, change: Callable[[BinaryGraph], BinaryGraph]) -> dict[str, BinaryInfo]:
    info = made.infos[binary]
    return {**made.infos, binary: msgspec.structs.replace(info, graphs=tuple(map(change, info.graphs)))}


def test_a_second_output_beside_the_caches(made: Generated) -> None:
    def also_hidden(graph: BinaryGraph) -> BinaryGraph:
        hidden = BinaryTensor("last_hidden_states", "float16", (1, 8, 64))
        return msgspec.structs.replace(graph, outputs=(*graph.outputs, hidden))

    with pytest.raises(BundleError, match="it gives logits and last_hidden_states; one output beside the caches"):
        read(made, each_graph(made, "part3_of_3.bin", also_hidden))


WHOLE = Recipe(parts=4, shapes=(StepShape(16, 0),))


def test_graphs_without_caches_that_have_fewer_rows_than_columns(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", WHOLE)
    infos = changed(made, with_("attention_mask", shape=(1, 1, 16, 32)), "part2_of_4.bin")
    with pytest.raises(BundleError, match=r"attention_mask is \[1, 1, 16, 32\] and there are no past keys and values"):
        read(made, infos)


def test_graphs_without_caches_lack_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", WHOLE)
    infos = changed(made, lambda tensor: None if tensor.name == "position_ids_cos" else tensor, "part2_of_4.bin")
    with pytest.raises(BundleError, match="input position_ids_cos is missing"):
        read(made, infos)


def test_a_missing_part_of_graphs_without_caches(checkpoint: Path, tmp_path: Path) -> None:
    """Nothing but its number tells: all hidden states are alike."""
    made = generate(checkpoint, tmp_path / "bundle", replace(WHOLE, precision="w4"))
    path = made.folder / "genie_config.json"
    config = json.loads(path.read_text())
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"].remove("part3_of_4.bin")
    path.write_text(json.dumps(config))
    with pytest.raises(
        BundleError, match="variant ar16_cl16: its graphs have no caches, so their names must say which"
    ):
        read(made, made.infos)


def test_graphs_with_and_without_caches(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=1, shapes=(StepShape(8, 56), StepShape(16, 0))))
    with pytest.raises(BundleError, match="variant ar16_cl16 has other layers than ar8_cl64"):
        read(made, made.infos)


def test_a_cache_index_for_some_graphs_only(made: Generated, checkpoint: Path, tmp_path: Path) -> None:
    in_place = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3, scatter=True))

    def plain(tensor: BinaryTensor) -> BinaryTensor:
        return msgspec.structs.replace(tensor, name=tensor.name.replace("nativekvcache__", ""))

    def named(info: BinaryInfo) -> BinaryInfo:
        graphs = [
            BinaryGraph(graph.name, tuple(map(plain, graph.inputs)), tuple(map(plain, graph.outputs)))
            for graph in info.graphs
        ]
        return msgspec.structs.replace(info, graphs=tuple(graphs))

    with pytest.raises(BundleError, match=r"cache_index is an input of .*_2_of_3, but not of .*_3_of_3"):
        read(made, {**made.infos, LAYERS: named(in_place.infos[LAYERS])})
    mixed = {
        name: msgspec.structs.replace(
            info,
            graphs=tuple(
                graph if "ar1_" in graph.name else next(g for g in made.infos[name].graphs if g.name == graph.name)
                for graph in named(info).graphs
            ),
        )
        for name, info in in_place.infos.items()
    }
    with pytest.raises(BundleError, match="variants ar1_cl64 and ar8_cl64: one has the input cache_index, the other"):
        read(made, mixed)


def test_heads_that_are_missing(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3, heads="_head_"))
    infos = changed(made, lambda tensor: None if "_0_head_0_" in tensor.name else tensor)
    with pytest.raises(BundleError, match="caches of layer 0 are not one for each head, from 0 on"):
        read(made, infos)


def test_caches_of_several_sizes(made: Generated) -> None:
    def wider(tensor: BinaryTensor) -> BinaryTensor:
        is_value = tensor.name.startswith("past_value_1")
        return msgspec.structs.replace(tensor, shape=(*tensor.shape[:3], 64)) if is_value else tensor

    with pytest.raises(BundleError, match=r"past_value_1_in has shape \[2, 1, 63, 64\], .*: caches of several sizes"):
        read(made, changed(made, wider))


def test_one_name_in_two_binaries(made: Generated) -> None:
    info = made.infos[LAYERS]
    taken = made.infos["part1_of_3.bin"].graphs[0].name
    graphs = (msgspec.structs.replace(info.graphs[0], name=taken), *info.graphs[1:])
    with pytest.raises(BundleError, match=rf"graph {taken} is in part1_of_3\.bin and in part2_of_3\.bin"):
        read(made, {**made.infos, LAYERS: msgspec.structs.replace(info, graphs=graphs)})


def test_axes_of_length_one_do_not_matter(made: Generated) -> None:
    """Other exporters write masks of rank 3 and caches as [1, heads, ...]: the bytes are the same."""

    def other(tensor: BinaryTensor) -> BinaryTensor:
        if tensor.name == "attention_mask":
            return msgspec.structs.replace(tensor, shape=tensor.shape[1:])
        if tensor.name.startswith("past_"):
            heads, one, *rest = tensor.shape
            return msgspec.structs.replace(tensor, shape=(one, heads, *rest))
        return tensor

    bundle = read_genie(made.folder, lambda path: changed(made, other, path.name)[path.name])
    plain = read_genie(made.folder, lambda path: made.infos[path.name])
    assert bundle.manifest.graphs == plain.manifest.graphs


def test_a_head_that_takes_its_weights(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3, head_alone=True))
    info = made.infos["part3_of_3.bin"]
    weight = BinaryTensor("weight", "float16", (384, 64))
    graphs = tuple(msgspec.structs.replace(graph, inputs=(*graph.inputs, weight)) for graph in info.graphs)
    with pytest.raises(BundleError, match="tensor weight is the LM head's weight matrix; no key of genie_config"):
        read(made, {**made.infos, "part3_of_3.bin": msgspec.structs.replace(info, graphs=graphs)})


def test_weights_that_no_head_takes(made: Generated) -> None:
    (made.folder / "hexserve.json").write_text('{"lm_head_weight": "genie_config.json"}')
    try:
        with pytest.raises(
            BundleError, match=r"hexserve\.json: lm_head_weight is for a head that takes its weights; none"
        ):
            read(made, made.infos)
    finally:
        (made.folder / "hexserve.json").unlink()


def test_caches_that_differ_between_variants(made: Generated) -> None:
    info = made.infos[LAYERS]
    encoding = QnnEncoding((0.5,), (-128,))

    def other(graph: BinaryGraph) -> BinaryGraph:
        if "ar8" not in graph.name:
            return graph
        change = lambda tensor: (  # noqa: E731
            msgspec.structs.replace(tensor, encoding=encoding) if tensor.name.startswith("past_key_0") else tensor
        )
        return BinaryGraph(graph.name, tuple(map(change, graph.inputs)), tuple(map(change, graph.outputs)))

    infos = {**made.infos, LAYERS: msgspec.structs.replace(info, graphs=tuple(map(other, info.graphs)))}
    with pytest.raises(BundleError, match=r"past_key_0_out is .* in ar1_cl64 and .* in ar8_cl64: the variants cannot"):
        read(made, infos)


def test_a_newer_binary(made: Generated) -> None:
    with pytest.raises(
        BundleError, match=r"part1_of_3\.bin was made by QNN 2\.45 .*the installed runtime is QNN 2\.40"
    ):
        read(made, made.infos, "2.40.0")


def test_images(made: Generated) -> None:
    graph = BinaryGraph("vision", (BinaryTensor("pixel_values", "float16", (1, 3, 8, 8)),), ())
    info = msgspec.structs.replace(made.infos[LAYERS], graphs=(graph,))
    with pytest.raises(BundleError, match=r"it encodes images \(tensor pixel_values\)"):
        read(made, {**made.infos, LAYERS: info})


@pytest.mark.parametrize(
    ("binaries", "message"),
    [
        (["part1_of_3.bin", "part3_of_3.bin"], "layer 0 is in no graph"),
        (["part1_of_3.bin", "part2_of_3.bin"], "no part gives logits"),
        (["part2_of_3.bin", "part3_of_3.bin"], "no part turns token ids into the first hidden state"),
        (["part1_of_3.bin"], "the bundle has no graph with layers and an attention mask"),
        (["part1_of_3.bin", "gone.bin"], r"has no gone\.bin, which ctx-bins names"),
        (["part1_of_3.bin", "x/part1_of_3.bin"], r"ctx-bins names part1_of_3\.bin twice"),
    ],
)
def test_parts_that_are_missing(checkpoint: Path, tmp_path: Path, binaries: list[str], message: str) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3, shapes=(StepShape(1, 63),)))
    path = made.folder / "genie_config.json"
    config = json.loads(path.read_text())
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = binaries
    path.write_text(json.dumps(config))
    with pytest.raises(BundleError, match=message):
        read(made, made.infos)


def test_a_variant_of_which_only_the_head_is_listed(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3, head_alone=True))
    info = made.infos[LAYERS]
    left = tuple(graph for graph in info.graphs if "ar8" not in graph.name)
    infos = {**made.infos, LAYERS: msgspec.structs.replace(info, graphs=left)}
    with pytest.raises(BundleError, match=r"ar8_cl64_1_of_3 of part1_of_3\.bin has 8 rows, but no graph with layers"):
        read(made, infos)


def test_prefill_graphs_alone(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=2, kv_only_rows=(1, 8)))
    with pytest.raises(BundleError, match="graph token_ar1_cl64_2_of_2 gives keys and values only, and no graph of an"):
        read(made, made.infos)


def test_keys_and_values_only_in_the_middle(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=3))
    hidden = "_model_model_layers_1_Add_1_output_0"
    with pytest.raises(BundleError, match=r"graph token_ar1_cl64_2_of_3 must have one output beside the caches"):
        read(made, changed(made, lambda tensor: None if tensor.name == hidden else tensor))
