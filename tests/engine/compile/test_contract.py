"""Shapes, names and the freedom of the tensor contract: splits, fixed variants, any column order, poisoned columns."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.bundle.manifest import GRAPH_NAME, GraphKind, Manifest, load_manifest, verify_hashes
from engine.bundle.variant import StepShape, shape_table
from engine.compile.arguments import Quant, Split
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import quants_with
from tests.plain_bundle import ChainedSequence, PartChain, graphs_of

FREE_QUANTS = quants_with(Activations.FLOAT32)
Build = Callable[..., tuple[Path, Manifest]]


def greedy_tokens(
    folder: Path, manifest: Manifest, shape: StepShape | None, prompt: list[int], count: int
) -> list[int]:
    """Greedy tokens; the prompt goes in as wide steps as the shape allows."""
    sequence = ChainedSequence.start(folder, manifest, shape)
    step = shape.rows if shape else len(prompt)
    for start in range(0, len(prompt), step):
        logits = sequence.extend(prompt[start : start + step])
    text = [int(logits[-1].argmax())]
    while len(text) < count:
        text.append(int(sequence.extend(text[-1:])[-1].argmax()))
    return text


@pytest.mark.parametrize("quant", FREE_QUANTS)
def test_splits_give_the_same_tokens(quant: Quant, tiny_checkpoint: Path, build: Build, prompt: list[int]) -> None:
    """The cut between graphs changes nothing, at any precision."""
    texts = []
    for split in (Split.NONE, Split.LMHEAD, Split.LUT_LMHEAD):
        folder, manifest = build(tiny_checkpoint, quant=quant, split=split)
        texts.append(greedy_tokens(folder, manifest, None, prompt, 24))
    assert texts[0] == texts[1] == texts[2]


def test_fixed_variants_give_the_free_tokens(tiny_checkpoint: Path, build: Build, prompt: list[int]) -> None:
    """Every fixed variant, padded as needed, says what the free graphs say."""
    free = greedy_tokens(*build(tiny_checkpoint, quant=Quant.FP32), None, prompt, 20)
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32, rows=(1, 8, 32), context=(96, 128))
    shapes = shape_table(manifest, 32).fixed
    assert [str(shape) for shape in shapes] == [f"ar{n}_cl{c}" for n in (1, 8, 32) for c in (96, 128)]
    for shape in shapes:
        assert greedy_tokens(folder, manifest, shape, prompt, 20) == free


def test_fixed_layout_and_names(tiny_checkpoint: Path, build: Build) -> None:
    """Names follow the contract, every shape is a number, and the weights exist once."""
    folder, manifest = build(tiny_checkpoint, rows=(1, 8), same_past=(64, 128), split=Split.LUT_LMHEAD)
    single, _ = build(tiny_checkpoint, split=Split.LUT_LMHEAD)
    assert {shape.past for shape in shape_table(manifest, 8).fixed} == {64, 128}
    assert manifest.max_context == 129
    for graph in manifest.graphs:
        assert re.fullmatch(GRAPH_NAME, graph.name)
        assert all(isinstance(dim, int) for tensor in (*graph.inputs, *graph.outputs) for dim in tensor.shape)
    for data in folder.glob("*.data"):
        assert data.stat().st_size == (single / data.name).stat().st_size
    kinds = [graph.kind for graph in graphs_of(manifest, StepShape(8, 64))]
    assert kinds == [GraphKind.LUT, GraphKind.DECODER, GraphKind.LMHEAD]


def test_contract_shapes_of_a_free_bundle(tiny_checkpoint: Path, build: Build) -> None:
    """Tensor names, types and shapes; parts are joined by equal names."""
    folder, manifest = build(tiny_checkpoint)
    decoder, head = manifest.graphs
    tensors = {tensor.name: (tensor.dtype, tensor.shape) for tensor in (*decoder.inputs, *decoder.outputs)}
    assert tensors["input_ids"] == ("int32", (1, "rows"))
    assert tensors["attention_mask"] == ("float32", (1, 1, "rows", "context"))
    assert tensors["position_ids_cos"] == tensors["position_ids_sin"] == ("float32", (1, 1, "rows", 8))
    assert tensors["past_key_1_in"] == ("float32", (2, 1, 16, "past"))
    assert tensors["past_value_1_in"] == ("float32", (2, 1, "past", 16))
    assert tensors["past_key_1_out"] == ("float32", (2, 1, 16, "rows"))
    assert tensors["past_value_1_out"] == ("float32", (2, 1, "rows", 16))
    assert decoder.outputs[-1].name == head.inputs[0].name
    assert head.outputs[0].shape == (1, "logit_rows", 384)
    assert manifest.is_free_shape and manifest.max_context == 512
    for graph in manifest.graphs:
        model = onnx.load(folder / graph.file, load_external_data=False)
        assert [value.name for value in model.graph.input] == [tensor.name for tensor in graph.inputs]
        assert [value.name for value in model.graph.output] == [tensor.name for tensor in graph.outputs]


def test_hashes(tiny_checkpoint: Path, build: Build) -> None:
    """The manifest knows every file of the folder, and notices a changed one."""
    folder, manifest = build(tiny_checkpoint)
    assert set(manifest.files) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert verify_hashes(folder, load_manifest(folder)) == []
    data = folder / "part_1_of_2.data"
    damaged = bytearray(data.read_bytes())
    damaged[100] ^= 1
    data.write_bytes(damaged)
    assert verify_hashes(folder, manifest) == ["part_1_of_2.data"]


def test_columns_in_any_order(tiny_checkpoint: Path, build: Build, prompt: list[int]) -> None:
    """Columns are found by the mask, not by their place."""
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32)
    sequence = ChainedSequence.start(folder, manifest, None)
    sequence.extend(prompt[:-4])
    feeds = sequence.feeds(prompt[-4:], StepShape(4, 64), len(prompt) - 4)
    straight = sequence.chain.run(feeds)["logits"]
    order = np.random.default_rng(5).permutation(64)
    for name in feeds:
        if name.startswith("past_key"):
            feeds[name] = feeds[name][..., order]
        if name.startswith("past_value"):
            feeds[name] = feeds[name][:, :, order]
    feeds["attention_mask"] = feeds["attention_mask"][..., [*order, 64, 65, 66, 67]]
    assert np.abs(sequence.chain.run(feeds)["logits"] - straight).max() < 1e-5 * np.abs(straight).max()


@pytest.mark.parametrize(("quant", "block"), [(Quant.FP32, 32), (Quant.INT8, 32), (Quant.INT4, 32)])
def test_masked_columns_and_other_rows_change_nothing(
    quant: Quant, block: int, tiny_checkpoint: Path, build: Build, prompt: list[int]
) -> None:
    """Bitwise: masked columns hold large values, other rows hold other tokens."""
    folder, manifest = build(tiny_checkpoint, quant=quant, block=block)
    sequence = ChainedSequence.start(folder, manifest, None)
    sequence.extend(prompt[:-4])
    feeds = sequence.feeds(prompt[-4:], StepShape(8, 64), len(prompt) - 4)
    clean = sequence.chain.run(feeds)["logits"][0, :4]
    for name in feeds:
        if name.startswith("past_key"):
            feeds[name][..., len(prompt) - 4 :] = 1e4
        if name.startswith("past_value"):
            feeds[name][:, :, len(prompt) - 4 :] = -1e4
    feeds["input_ids"][0, 4:] = [7, 300, 12, 9]
    feeds["position_ids_cos"][0, 0, 4:] = 0.5
    assert np.array_equal(sequence.chain.run(feeds)["logits"][0, :4], clean)


@pytest.mark.parametrize(("quant", "tolerance"), [(Quant.INT8, 1e-6), (Quant.INT4, 1e-6)])
def test_quantised_rows_do_not_depend_on_the_batch(
    quant: Quant, tolerance: float, tiny_checkpoint: Path, build: Build
) -> None:
    """The LM head alone is one linear layer. the kernels add floats by their own tiles."""
    folder, manifest = build(tiny_checkpoint, quant=quant)
    head = PartChain(folder, manifest, None).links[-1][1]
    sizes = np.arange(1, 10, dtype=np.float32)[None, :, None]
    rows = np.random.default_rng(2).standard_normal((1, 9, 64)).astype(np.float32) * sizes
    together = head.run(None, {"hidden_states": rows})[0]
    for first, last in itertools.combinations((0, 1, 4, 9), 2):
        alone = head.run(None, {"hidden_states": rows[:, first:last]})[0]
        assert np.abs(alone - together[:, first:last]).max() <= tolerance * np.abs(together).max()
    other = rows.copy()
    other[:, 1:] *= -7
    assert np.array_equal(head.run(None, {"hidden_states": other})[0][:, 0], together[:, 0])


@pytest.mark.parametrize("quant", FREE_QUANTS)
def test_rows_of_zeros(quant: Quant, tiny_checkpoint: Path, build: Build) -> None:
    """A row without any value has no scale; its logits are zeros and its neighbour's are untouched."""
    folder, manifest = build(tiny_checkpoint, quant=quant)
    head = PartChain(folder, manifest, None).links[-1][1]
    rows = np.random.default_rng(2).standard_normal((1, 2, 64)).astype(np.float32)
    expected = head.run(None, {"hidden_states": rows})[0]
    rows[0, 0] = 0
    logits = head.run(None, {"hidden_states": rows})[0]
    assert not logits[0, 0].any() and np.array_equal(logits[0, 1], expected[0, 1])


def test_first_token_without_past(tiny_checkpoint: Path, build: Build) -> None:
    """A step over an empty past is allowed on free shapes."""
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32)
    logits = ChainedSequence.start(folder, manifest, None).extend([5])
    assert logits.shape == (1, 384)
