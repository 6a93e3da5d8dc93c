"""Exported graphs against the definition of block diffusion, on the CPU provider."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.compile.arguments import Backend, ExportArguments
from engine.compile.graphs.block_export import GRAPH_FILE, export_blocks
from engine.compile.progress import SilentProgress
from tests.engine.compile.graphs.block_export.eager import EagerModel, write_block_checkpoint
from tools.block_loop import (
    HIDDEN,
    BlockLoop,
    ExportedGraph,
    LoopOptions,
    StepKind,
    attention_mask,
    block_positions,
    for_layers,
    insert_matrix,
    keep_mask,
)

CONTEXT = 24
TOLERANCE = {"atol": 1e-5, "rtol": 0}
# What may stand in a graph that computes the same nodes whatever its inputs hold.
STATIC = {"Add", "Cast", "Concat", "Gather", "MatMul", "Mul", "Reshape", "Softmax", "Split", "Transpose"}
FUSED = {"QuickGelu", "RMSNormalization", "RotaryEmbedding"}
PLAIN = {"Div", "ReduceMean", "Sigmoid", "Sqrt", "Sub"}

Export = Callable[..., ExportedGraph]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """export(checkpoint, **options) -> the graph, opened."""

    def make(source: Path, **options: Any) -> ExportedGraph:
        folder = tmp_path / f"export-{len(list(tmp_path.iterdir()))}"
        arguments = ExportArguments(source, folder, **{"context": CONTEXT} | options)
        export_blocks(arguments, SilentProgress())
        return ExportedGraph(folder, threads=1)

    return make


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, two query heads on each of two key heads."""
    return write_block_checkpoint(tmp_path_factory.mktemp("blocks") / "two")


def random_blocks(count: int, seed: int = 1) -> list[list[int]]:
    return np.random.default_rng(seed).integers(1, 95, (count, 4)).tolist()


def compare(graph: ExportedGraph, source: Path) -> None:
    """Four blocks: each is iterated on with a mask token in it, then committed; the logits of all steps agree."""
    loop, eager = BlockLoop(graph.export, graph.run), EagerModel(source)
    for block in random_blocks(4):
        noisy = [block[0], 95, block[2], 95]
        np.testing.assert_allclose(loop.run(noisy, StepKind.ITERATION), eager.forward(noisy), **TOLERANCE)
        np.testing.assert_allclose(loop.run(block, StepKind.COMMIT), eager.forward(block, commit=True), **TOLERANCE)
    for layer, (keys, values) in enumerate(zip(eager.keys, eager.values, strict=True)):
        np.testing.assert_allclose(loop.cache[layer, 0, 0, :, :16], keys, **TOLERANCE)
        np.testing.assert_allclose(loop.cache[layer, 1, 0, :, :16], values, **TOLERANCE)


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.PORTABLE])
def test_one_layer_gives_the_numbers_of_the_definition(tmp_path: Path, export: Export, backend: Backend) -> None:
    source = write_block_checkpoint(tmp_path / "one", layers=1)
    compare(export(source, backend=backend), source)


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.PORTABLE])
@pytest.mark.parametrize("shared", [False, True])
def test_several_layers_give_the_numbers_of_the_definition(
    tmp_path: Path, export: Export, backend: Backend, shared: bool
) -> None:
    source = write_block_checkpoint(tmp_path / "three", layers=3)
    compare(export(source, backend=backend, shared_masks=shared), source)


def test_five_tokens_end_to_end(checkpoint: Path, export: Export) -> None:
    graph = export(checkpoint)
    prompt = [7, 21, 3, 90, 14, 55]
    answer = BlockLoop(graph.export, graph.run).generate(prompt, LoopOptions(longest=5, confidence=0.02))
    assert len(answer) == 5
    assert answer == EagerModel(checkpoint).generate(prompt, 5, confidence=0.02)


@pytest.mark.parametrize("confidence", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("length", [1, 4, 7])
def test_block_scenarios(checkpoint: Path, export: Export, length: int, confidence: float) -> None:
    """Part of a block, a whole block, a block and a part as prompt; one step a block, some, one step a token."""
    graph, prompt = export(checkpoint), list(range(20, 20 + length))
    answer = BlockLoop(graph.export, graph.run).generate(prompt, LoopOptions(13, confidence))
    assert answer == EagerModel(checkpoint).generate(prompt, 13, confidence)


def test_without_a_prompt_all_rows_of_the_first_block_say_the_same(checkpoint: Path, export: Export) -> None:
    """Four mask tokens that see each other alone have equal values; which one is surest is a matter of rounding."""
    graph = export(checkpoint)
    answer = BlockLoop(graph.export, graph.run).generate([], LoopOptions(8, confidence=0.0))
    assert answer[:4] == [answer[0]] * 4
    assert answer == EagerModel(checkpoint).generate([], 8, confidence=0.0)


def test_heads_of_a_group_read_one_key_head(tmp_path: Path, export: Export) -> None:
    source = write_block_checkpoint(tmp_path / "grouped", num_attention_heads=6, num_key_value_heads=2)
    compare(export(source), source)


def test_as_many_key_heads_as_heads(tmp_path: Path, export: Export) -> None:
    source = write_block_checkpoint(tmp_path / "even", num_attention_heads=3, num_key_value_heads=3)
    compare(export(source), source)


@pytest.mark.parametrize("head_dim", [8, 32])
def test_scores_are_scaled_by_the_root_of_the_head_size(tmp_path: Path, export: Export, head_dim: int) -> None:
    source = write_block_checkpoint(tmp_path / "scaled", head_dim=head_dim)
    compare(export(source), source)


def test_rotations_are_read_from_tables_at_the_positions(checkpoint: Path, export: Export) -> None:
    """A block at the position 8 of an empty cache has the keys of a block that comes third."""
    graph, block = export(checkpoint), random_blocks(1)[0]
    eager = EagerModel(checkpoint)
    for other in random_blocks(2, seed=5):
        eager.forward(other, commit=True)
    eager.forward(block, commit=True)
    inputs = inputs_of(graph, [block], [0], [0])
    inputs["positions"] = block_positions([8], 4)
    _, cache = graph.run(inputs)
    np.testing.assert_allclose(cache[0, 0, 0, :, :4], eager.keys[0][:, 8:12], **TOLERANCE)


def test_sequences_of_a_batch_do_not_see_each_other(checkpoint: Path, export: Export) -> None:
    blocks = random_blocks(2)
    pair, alone = export(checkpoint, batch=2), export(checkpoint)
    together, cache = pair.run(inputs_of(pair, blocks, [0, 0], [0, 0]))
    for sequence, block in enumerate(blocks):
        logits, own = alone.run(inputs_of(alone, [block], [0], [0]))
        np.testing.assert_allclose(together[sequence], logits[0], **TOLERANCE)
        np.testing.assert_allclose(cache[:, :, sequence], own[:, :, 0], **TOLERANCE)


def inputs_of(
    graph: ExportedGraph, blocks: list[list[int]], seen: list[int], writes: list[int | None], seed: int | None = None
) -> dict[str, Any]:
    """The inputs of one step over an empty cache, or one of random numbers."""
    export = graph.export
    spread = partial(for_layers, layers=export.mask_layers)
    cache = np.zeros(export.cache_shape, np.float32)
    if seed is not None:
        cache = np.random.default_rng(seed).standard_normal(export.cache_shape).astype(np.float32)
    return {
        "input_ids": np.array(blocks, np.int32),
        "positions": block_positions(seen, export.block),
        "kv_cache": cache,
        "attention_mask": spread(attention_mask(seen, export.block, export.context)),
        "insert_matrix": spread(insert_matrix(writes, export.block, export.context)),
        "keep_mask": spread(keep_mask(writes, export.block, export.context)),
    }


def test_iterations_leave_every_byte_of_the_cache(checkpoint: Path, export: Export) -> None:
    graph = export(checkpoint)
    inputs = inputs_of(graph, random_blocks(1), [8], [None], seed=3)
    _, cache = graph.run(inputs)
    assert cache.tobytes() == inputs["kv_cache"].tobytes()


@pytest.mark.parametrize("start", [0, 8, CONTEXT - 4])
def test_commits_write_exactly_the_columns_of_the_block(checkpoint: Path, export: Export, start: int) -> None:
    graph, block = export(checkpoint), random_blocks(1)
    inputs = inputs_of(graph, block, [8], [start], seed=3)
    _, cache = graph.run(inputs)
    outside = np.r_[0:start, start + 4 : CONTEXT]
    assert cache[..., outside, :].tobytes() == inputs["kv_cache"][..., outside, :].tobytes()
    # What is written depends on the tokens, their positions and what they see, not on the columns it goes to.
    _, elsewhere = graph.run(inputs_of(graph, block, [8], [12], seed=3))
    assert cache[..., start : start + 4, :].tobytes() == elsewhere[..., 12:16, :].tobytes()
    assert (cache[..., start : start + 4, :] != inputs["kv_cache"][..., start : start + 4, :]).all()


def test_columns_that_are_not_committed_are_not_seen(checkpoint: Path, export: Export) -> None:
    graph = export(checkpoint)
    clean = inputs_of(graph, random_blocks(1), [8], [None], seed=3)
    poisoned = dict(clean) | {"kv_cache": clean["kv_cache"].copy()}
    poisoned["kv_cache"][..., 8:, :] = 100  # scores of some hundreds: a mask of -10000 hides them completely
    assert graph.run(clean)[0].tobytes() == graph.run(poisoned)[0].tobytes()


def test_every_layer_obeys_its_own_masks(checkpoint: Path, export: Export) -> None:
    """The second layer alone writes the block, and alone does not see the first eight columns."""
    graph = export(checkpoint)
    inputs = inputs_of(graph, random_blocks(1), [8], [8], seed=3)
    inputs["insert_matrix"][0], inputs["keep_mask"][0] = 0, 1
    inputs["attention_mask"][1, ..., :8] = HIDDEN
    logits, cache = graph.run(inputs)
    assert cache[0].tobytes() == inputs["kv_cache"][0].tobytes()
    assert (cache[1, ..., 8:12, :] != inputs["kv_cache"][1, ..., 8:12, :]).all()
    poisoned = inputs["kv_cache"].copy()
    poisoned[1, ..., :8, :] = 100
    assert graph.run(dict(inputs) | {"kv_cache": poisoned})[0].tobytes() == logits.tobytes()
    poisoned[0, ..., :8, :] = 100
    assert graph.run(dict(inputs) | {"kv_cache": poisoned})[0].tobytes() != logits.tobytes()


def operators(folder: Path) -> set[str]:
    graph = onnx.load(str(folder / GRAPH_FILE), load_external_data=False).graph
    assert not [each for node in graph.node for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    return {node.op_type for node in graph.node}


@pytest.mark.parametrize(
    ("backend", "more"), [(Backend.CPU, FUSED), (Backend.PORTABLE, PLAIN), (Backend.NPU, {*FUSED, *PLAIN})]
)
def test_nothing_in_the_graph_depends_on_data(
    checkpoint: Path, tmp_path: Path, backend: Backend, more: set[str]
) -> None:
    """No If, Loop, Where, NonZero or slice by a computed number; every dimension and every index is a constant."""
    export_blocks(ExportArguments(checkpoint, tmp_path / "out", CONTEXT, backend=backend), SilentProgress())
    assert operators(tmp_path / "out") <= STATIC | more
    graph = onnx.load(str(tmp_path / "out" / GRAPH_FILE), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    assert all(node.input[1] in constants for node in graph.node if node.op_type in ("Reshape", "Split"))
    indices = {node.input[1] for node in graph.node if node.op_type == "Gather"} - constants
    tokens = {node.output[0] for node in graph.node if node.op_type == "Reshape" and node.input[0] == "input_ids"}
    assert indices == {"positions"} | tokens
    for value in (*graph.input, *graph.output):
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim)


def test_names_of_parameters_are_identifiers(checkpoint: Path, export: Export, tmp_path: Path) -> None:
    """Checkpoints have `model.layers.0.self_attn.q_proj.weight`: dots are no part of a name in C or in Python."""
    graph = export(checkpoint)
    (folder,) = tmp_path.iterdir()
    model = onnx.load(str(folder / GRAPH_FILE), load_external_data=False).graph
    names = {tensor.name for tensor in model.initializer} | {name for node in model.node for name in node.output}
    names |= set(graph.export.input_shapes())
    assert len(names) > 50
    assert [name for name in names if not re.fullmatch(r"[A-Za-z_]\w*", name)] == []


def test_the_interface_is_the_contract(checkpoint: Path, export: Export, tmp_path: Path) -> None:
    export(checkpoint, batch=2)
    (folder,) = tmp_path.iterdir()
    graph = onnx.load(str(folder / GRAPH_FILE), load_external_data=False).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "input_ids": [2, 4],
        "positions": [2, 4],
        "kv_cache": [2, 2, 2, 2, 24, 16],
        "attention_mask": [2, 2, 1, 4, 28],
        "insert_matrix": [2, 2, 1, 24, 4],
        "keep_mask": [2, 2, 1, 24, 1],
        "logits": [2, 4, 96],
        "updated_kv_cache": [2, 2, 2, 2, 24, 16],
    }
