"""Graphs without a past behind the ordinary scheduler: the same tokens, computed from the beginning at every step."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import GraphKind, Manifest, load_manifest
from engine.bundle.tensors import Encoding
from engine.bundle.variant import ShapeTable, StepShape, shape_table
from engine.compile.arguments import CompileArguments, Layout, Quant, Split
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import CompileError, StepFailed
from engine.request import FinishReason, Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch, PackedSegment
from engine.runtime.opening import WholeContextRuntime
from engine.worker.assembly import assemble
from tests.bundles import Bundles
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.worker.simulation import VOCAB, by_hand

PROMPTS = {f"s{number}": tuple(range(7 + number, 30 + 3 * number)) for number in range(5)}


@pytest.fixture(scope="module")
def whole(bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "bundle"
    arguments = CompileArguments(bundles.source, folder, quant=Quant.FP32, parity_tokens=96, whole_context=(64, 128))
    compile_bundle(arguments, SilentProgress())
    return folder


def answers(folder: Path, count: int = 20, **settings: object) -> dict[str, list[int]]:
    made = assemble(EngineConfig(bundle=str(folder), **settings))  # type: ignore[arg-type]
    for name, prompt in PROMPTS.items():
        made.loop.add(Request(name, prompt, SamplingParams(count, temperature=0.0)), (), 1, 0.0)
    found: dict[str, list[int]] = {name: [] for name in PROMPTS}
    while made.loop.scheduler.has_work:
        report = made.loop.step()
        assert not report.failures
        for event in report.events:
            found[event.id] += event.token_ids
            assert not event.cached_tokens
    made.loop.close()
    made.runtime.close()
    return found


def test_the_graphs_keep_nothing(whole: Path) -> None:
    manifest = load_manifest(whole)
    assert manifest.reads_whole_context and manifest.max_context == 128
    layers = [graph for graph in manifest.graphs if graph.kind is GraphKind.DECODER]
    assert [(graph.name, graph.rows, graph.context) for graph in layers] == [
        ("ar64_cl64_1_of_2", 64, 64),
        ("ar128_cl128_1_of_2", 128, 128),
    ]
    names = {tensor.name for graph in layers for tensor in (*graph.inputs, *graph.outputs)}
    assert names == {"input_ids", "attention_mask", "position_ids_cos", "position_ids_sin", "hidden_states"}
    assert shape_table(manifest, 32) == ShapeTable((), 32, 128, segmented=True, recomputes=True)
    assert manifest.parity["relative_error"] < 1e-3


def test_the_tokens_of_the_cached_path(whole: Path, bundles: Bundles) -> None:
    expected = answers(bundles("free"))
    assert answers(whole) == expected
    assert answers(whole, deterministic=True) == expected
    assert answers(whole, max_rows=8, kv_slots=128) == expected  # prompts in pieces, sequences that give way


@pytest.mark.parametrize("change", [{"split": Split.NONE}, {"split": Split.LUT_LMHEAD}, {"quant": Quant.INT8}])
def test_every_split(build: Callable[..., tuple[Path, Manifest]], bundles: Bundles, change: dict[str, object]) -> None:
    options: dict[str, object] = {"quant": Quant.FP32, "parity_tokens": 8, **change}
    folder, _ = build(bundles.source, whole_context=(64,), **options)
    cached, _ = build(bundles.source, **options)
    assert answers(folder, 6) == answers(cached, 6)


def test_a_sequence_ends_where_the_graph_does(whole: Path) -> None:
    made = assemble(EngineConfig(bundle=str(whole), lookup_rows=0))
    made.loop.add(Request("a", tuple(range(3, 123)), SamplingParams(50, temperature=0.0)), (), 1, 0.0)
    with pytest.raises(ValueError, match="128 tokens leave no room in a context of 128"):
        made.loop.add(Request("b", (3,) * 128, SamplingParams(1)), (), 1, 0.0)
    events = []
    while made.loop.scheduler.has_work:
        events += made.loop.step().events
    made.loop.close()
    made.runtime.close()
    assert (len(events), events[-1].finish) == (8, FinishReason.LENGTH)


class Inner(FakeRuntime):
    """Graphs of 8 and 16 rows."""

    def __init__(self) -> None:
        shapes = (StepShape(8, 0), StepShape(16, 0))
        super().__init__(ShapeTable(shapes, 16, 0), 0, VOCAB)


def batch(*segments: tuple[tuple[int, ...], tuple[int, ...], int, int]) -> PackedBatch:
    """Of (new tokens, blocks, past, logit rows) each."""
    ids = np.array([token for tokens, *_ in segments for token in tokens], np.int32)
    packed, rows, row = [], [], 0
    for tokens, blocks, past, wanted in segments:
        packed.append(PackedSegment(row, len(tokens), blocks, past, 0))
        row += len(tokens)
        rows += range(row - wanted, row)
    return PackedBatch(StepShape(len(ids), 64), ids, np.zeros_like(ids), np.array(rows, np.int64), tuple(packed), 4)


def test_several_sequences_are_packed_and_a_step_takes_the_runs_it_needs() -> None:
    inner = Inner()
    runtime = WholeContextRuntime(inner, [16, 8], ShapeTable((), 64, 64, segmented=True))
    assert not len(runtime.run(batch(((1, 2, 3, 4, 5), (), 0, 0))))  # nobody asks: nothing is computed
    assert inner.steps == []
    runtime.keep(np.arange(5), np.array([8, 9, 10, 11, 4]))  # blocks 2 and 1
    asked = batch(((6, 7), (2, 1), 5, 2), ((9, 9, 9), (), 0, 1), ((3,), (), 0, 1), (tuple(range(12)), (), 0, 1))
    found = runtime.run(asked).decoded().argmax(axis=1).tolist()
    expected = [by_hand(tokens, 1)[0] for tokens in ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7), (9, 9, 9), (3,))]
    assert found == [*expected, by_hand(tuple(range(12)), 1)[0]]
    assert [(run.shape.rows, [segment.count for segment in run.segments]) for run in inner.steps] == [
        (16, [7, 3, 1]),
        (16, [12]),
    ]


def test_graphs_with_scales_of_their_own_give_real_numbers() -> None:
    class Coded(Inner):
        def run(self, batch: PackedBatch) -> Logits:
            encoding = Encoding("uint8", batch.shape.rows / 100)
            return Logits(encoding.encode(super().run(batch).decoded().astype(np.float64)), encoding)

    runtime = WholeContextRuntime(Coded(), [8, 16], ShapeTable((), 64, 64, segmented=True))
    found = runtime.run(batch((tuple(range(14)), (), 0, 1), ((9, 9, 9), (), 0, 1))).decoded()
    assert np.allclose(found.max(axis=1), 10, atol=0.1)


def test_with_one_pinned_shape_each_runs_alone() -> None:
    inner = Inner()
    runtime = WholeContextRuntime(inner, [8, 16], ShapeTable((StepShape(4, 64),), 4, 64, segmented=True))
    runtime.run(batch(((6, 7), (), 0, 1), ((9,), (), 0, 1)))
    assert [(run.shape.rows, [segment.count for segment in run.segments]) for run in inner.steps] == [
        (16, [2]),
        (16, [1]),
    ]


def test_a_sequence_that_is_too_long_fails_the_step() -> None:
    runtime = WholeContextRuntime(Inner(), [8, 16], ShapeTable((), 64, 64, segmented=True))
    with pytest.raises(StepFailed, match="17 tokens are more than the 16 rows"):
        runtime.run(batch(((1,) * 17, (), 0, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": (8,), "context": (64,)}, "--whole-context excludes --rows"),
        ({"quant": Quant.W8A16}, "--whole-context is for --target cpu with float activations"),
        ({"layout": Layout.SEGMENTS}, "--whole-context is for --layout pool"),
        ({"whole_context": (0,)}, "--whole-context takes numbers from 1 to"),
    ],
)
def test_what_does_not_go_with_it(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compile_bundle(
            CompileArguments(tmp_path, tmp_path / "out", **{"whole_context": (64,), **options}), SilentProgress()
        )  # type: ignore[arg-type]
