"""Block diffusion on real graphs: what is served is what an eager float64 network says, by the definition."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from engine.bundle.manifest import DiffusionSpec, load_manifest
from engine.compile.arguments import CompileArguments, ExportArguments, KvType, Layout, Quant
from engine.compile.graphs.block_export import export_blocks
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Denoising, Request, SamplingParams, TokenEvent, Unmasking
from engine.runtime.interface import Logits, PackedBatch
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.segmented import SegmentRuntime
from engine.worker.assembly import Assembled, assemble, choose_shapes
from server.commands.bundle_tables import describe
from tests.engine.core.blocks_by_hand import ByHand, denoise
from tests.engine.core.eager_blocks import EagerBlocks, write_sdar
from tools.block_loop import BlockLoop, ExportedGraph, StepKind

MASK = 300
FOUR = Denoising(4, MASK, 4)
RULES = {
    "dynamic": replace(FOUR, confidence_threshold=0.03),
    "static": replace(FOUR, steps=2, unmasking=Unmasking.STATIC_CONFIDENCE),
    "sequential": replace(FOUR, unmasking=Unmasking.SEQUENTIAL),
    "entropy": replace(FOUR, unmasking=Unmasking.ENTROPY_BOUND, entropy_bound=11.0),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "segments": {"layout": Layout.SEGMENTS, "kv": KvType.FLOAT32},
    "pool": {"layout": Layout.POOL},
    "fixed": {"rows": (1, 8, 32), "context": (64, 160)},
    "one block at a time": {"rows": (4,), "context": (160,)},
    "whole context": {"whole_context": (64, 160)},
}
ONE_SHAPE: dict[str, Any] = {"rows": (8,), "context": (64,)}
LENGTHS = (1, 4, 6, 13, 50)

Compiled = Callable[[str], Path]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sdar(tmp_path_factory.mktemp("sdar") / "tiny", 4, MASK)


@pytest.fixture(scope="module")
def eager(source: Path) -> EagerBlocks:
    loaded = EagerBlocks.load(source)
    logits = lru_cache(maxsize=None)(loaded.logits)
    loaded.logits = lambda tokens: logits(tuple(tokens))  # type: ignore[method-assign]
    return loaded


@pytest.fixture(scope="module")
def compiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("compiled")

    def make(layout: str) -> Path:
        output = folder / layout.replace(" ", "-")
        if not output.exists():
            base = CompileArguments(source, output, quant=Quant.FP32, parity_tokens=8)
            compile_bundle(replace(base, **LAYOUTS.get(layout, ONE_SHAPE)), SilentProgress())
        return output

    return make


@pytest.fixture(scope="module", params=LAYOUTS)
def engine(compiled: Compiled, request: pytest.FixtureRequest) -> Iterator[Assembled]:
    assembled = assemble(EngineConfig(bundle=str(compiled(request.param)), threads=1))
    yield assembled
    assembled.runtime.close()
    assembled.loop.close()


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple(map(int, np.random.default_rng(length).integers(0, 256, length)))


def params_of(denoising: Denoising, max_tokens: int = 14, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "denoising": denoising, **more})


def answers(engine: Assembled, *requests: Request, seed: int = 7) -> dict[str, list[int]]:
    """What each request gets when all are there at once."""
    return {
        name: [t for e in events for t in e.token_ids] for name, events in played(engine, *requests, seed=seed).items()
    }


def played(engine: Assembled, *requests: Request, seed: int = 7) -> dict[str, list[TokenEvent]]:
    found: dict[str, list[TokenEvent]] = {request.id: [] for request in requests}
    for request in requests:
        engine.loop.add(request, (), seed, 0.0)
    while engine.loop.scheduler.has_work:
        report = engine.loop.step()
        assert not report.failures
        for event in report.events:
            found[event.id].append(event)
    return found


def by_definition(eager: EagerBlocks, length: int, denoising: Denoising, max_tokens: int = 14) -> ByHand:
    return denoise(eager, prompt_of(length), denoising, max_tokens)


def test_the_manifest_says_what_a_block_is(compiled: Compiled) -> None:
    manifest = load_manifest(compiled("pool"))
    assert manifest.model.family == "sdar"
    assert manifest.diffusion == DiffusionSpec(4, MASK)


def test_settings_and_drawing_follow_the_blocks(compiled: Compiled) -> None:
    manifest = load_manifest(compiled("fixed"))
    assert [shape.rows for shape in choose_shapes(manifest, EngineConfig("")).fixed] == [8, 8, 32, 32]
    for setting, value in (("lookup_rows", 2), ("draft", "some-bundle")):
        with pytest.raises(BundleError, match=f"{setting} guesses the next tokens: tiny denoises blocks"):
            choose_shapes(manifest, replace(EngineConfig(""), **{setting: value}))
    stream = io.StringIO()
    Console(file=stream, width=130).print(describe(compiled("fixed")))
    assert "denoised 4 tokens at a time, mask token 300" in stream.getvalue()


@pytest.mark.parametrize("rule", RULES)
def test_served_tokens_are_those_of_the_eager_network(engine: Assembled, eager: EagerBlocks, rule: str) -> None:
    requests = [Request(f"{rule}{length}", prompt_of(length), params_of(RULES[rule])) for length in LENGTHS]
    together = answers(engine, *requests)
    for length, request in zip(LENGTHS, requests, strict=True):
        expected = by_definition(eager, length, RULES[rule]).tokens
        assert together[request.id] == expected
        assert answers(engine, replace(request, id="alone")) == {"alone": expected}


def test_the_rules_say_different_things(eager: EagerBlocks) -> None:
    found = {rule: by_definition(eager, 24, settings) for rule, settings in RULES.items()}
    assert len({tuple(result.tokens) for result in found.values()}) == 4
    for rule in ("dynamic", "entropy"):
        assert 4 < sum(found[rule].steps) < 16


@dataclass
class SeenStep:
    """One step and the logits [R, V] it gave."""

    batch: PackedBatch
    logits: np.ndarray


def watched(engine: Assembled, monkeypatch: pytest.MonkeyPatch) -> list[SeenStep]:
    """The steps that the engine runs from now on."""
    seen: list[SeenStep] = []
    run = engine.runtime.run

    def noting(batch: PackedBatch) -> Logits:
        logits = run(batch)
        seen.append(SeenStep(batch, logits.decoded().copy()))
        return logits

    monkeypatch.setattr(engine.runtime, "run", noting)
    return seen


@pytest.mark.parametrize("length", [6, 50])
def test_logits_are_those_of_eager_attention(
    engine: Assembled, eager: EagerBlocks, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row that is read, in every step of an answer: rotation by position, scale, query heads on shared keys."""
    seen = watched(engine, monkeypatch)
    tokens = [*prompt_of(length), *answers(engine, Request("a", prompt_of(length), params_of(RULES["entropy"])))["a"]]
    compared = 0
    for each in seen:
        first = int(each.batch.positions[each.batch.starts[0]])
        rows = [*tokens[:first], *each.batch.input_ids[each.batch.starts[0] :].tolist()]
        expected = eager(rows, each.batch.positions[each.batch.logit_rows].tolist())
        np.testing.assert_allclose(each.logits, expected, rtol=1e-4, atol=1e-4)
        compared += len(expected)
    assert compared >= 20


def test_the_exported_graph_says_what_the_mode_says(
    engine: Assembled, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of an answer again, on the graph that takes its cache and masks as inputs: iterations and commits."""
    export_blocks(ExportArguments(source, tmp_path / "export", context=48), SilentProgress())
    graph = ExportedGraph(tmp_path / "export", threads=1)
    loop, known, compared = BlockLoop(graph.export, graph.run), list[int](), 0
    seen = watched(engine, monkeypatch)
    answers(engine, Request("a", prompt_of(6), params_of(RULES["dynamic"])))
    for each in seen:
        start = each.batch.starts[0]
        tokens, first = each.batch.input_ids[start:].tolist(), int(each.batch.positions[start])
        known[first:] = tokens
        for block in range(loop.committed, len(known) - 4, 4):
            loop.run(known[block : block + 4], StepKind.COMMIT)
        said = loop.run(tokens[-4:], StepKind.ITERATION)[each.batch.logit_rows - len(each.batch.input_ids)]
        np.testing.assert_allclose(each.logits, said, rtol=0, atol=1e-5)
        compared += len(said)
    assert compared >= 12 and loop.committed >= 12


@pytest.mark.parametrize("rule", ["sequential", "entropy"])
def test_denoising_changes_no_byte_of_the_cache_and_keeping_exactly_the_block(compiled: Compiled, rule: str) -> None:
    """The pool is there from the start, for every layer, and stays where it is, as there is one shape."""
    engine = assemble(EngineConfig(bundle=str(compiled("one shape")), threads=1))
    runtime, model = engine.runtime, load_manifest(compiled("one shape")).model
    assert isinstance(runtime, OnnxRuntime)
    engine.loop.add(Request("a", prompt_of(17), params_of(RULES[rule], 12)), (), 7, 0.0)
    before, computed, kept = None, 0, list[int]()
    while engine.loop.scheduler.has_work:
        sequences = engine.loop.scheduler.sequences()
        engine.loop.step()
        pool = runtime._pool.columns
        width = pool.keys.shape[-1]
        assert pool.keys.shape == (model.layers, model.kv_heads, 1, model.head_dim, width)
        assert pool.values.shape == (model.layers, model.kv_heads, 1, width, model.head_dim)
        after = np.concatenate([pool.keys.swapaxes(-1, -2), pool.values])
        if before is not None:
            changed = np.flatnonzero((before != after).any(axis=(0, 1, 2, 4)))
            assert changed.tolist() == list(range(computed, sequences[0].computed))
            if computed >= 16:  # the prompt has been read
                kept.append(len(changed))
        before, computed = after, sequences[0].computed
    runtime.close()
    engine.loop.close()
    assert set(kept) == {0, 4}


def test_what_is_kept_is_what_a_clean_forward_has(engine: Assembled, eager: EagerBlocks) -> None:
    """An answer sent again as a prompt goes on as the first answer did: nothing noisy was kept of it."""
    first = answers(engine, Request("first", prompt_of(13), params_of(RULES["static"], 30)))["first"]
    assert first == denoise(eager, prompt_of(13), RULES["static"], 30).tokens
    for cut in (3, 11, 19):
        again = Request("again", (*prompt_of(13), *first[:cut]), params_of(RULES["static"], 30 - cut))
        assert answers(engine, again)["again"] == first[cut:]


def test_sampled_answers_are_their_own_whoever_shares_the_steps(engine: Assembled) -> None:
    """Four strategies, with cuts of the distribution, bias, min_tokens and log-probabilities, alone and together."""
    requests = [
        Request(
            f"s{number}",
            prompt_of(length),
            params_of(
                list(RULES.values())[number % 4],
                11 + number,
                temperature=0.7 + number / 10,
                top_k=(0, 20)[number % 2],
                top_p=(1.0, 0.8)[number // 2 % 2],
                min_p=(0.0, 0.05)[number // 4],
                logit_bias=((5, 2.0),),
                min_tokens=number,
                stop_token_ids=tuple(range(0, 384, 3)),
                logprobs=2,
            ),
        )
        for number, length in enumerate((1, 4, 6, 13, 24, 50, 3, 9))
    ]
    together = played(engine, *requests)
    for number, request in enumerate(requests):
        (alone,) = played(engine, request).values()
        tokens = [token for event in alone for token in event.token_ids]
        assert [token for event in together[request.id] for token in event.token_ids] == tokens
        entries = [entry for event in alone for entry in event.logprobs]
        assert [entry.token_id for entry in entries] == tokens
        assert MASK not in tokens and all(top[0] != MASK for entry in entries for top in entry.top)
        assert len(tokens) > number and all(token % 3 for token in tokens[:number])


SHARED = tuple(map(int, np.random.default_rng(5).integers(0, 256, 170)))


@pytest.mark.parametrize("layout", ["segments", "pool"])
def test_a_long_prefix_that_several_share_is_computed_once_and_means_the_same(
    compiled: Compiled, eager: EagerBlocks, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a segmented bundle it is held once: rows that see both ways stand upon it."""
    engine = assemble(EngineConfig(bundle=str(compiled(layout)), threads=1))
    prompts = [(*SHARED, *prompt_of(length)) for length in (1, 2, 5, 9, 13)]
    requests = [Request(str(n), prompt, params_of(RULES["static"], 9)) for n, prompt in enumerate(prompts)]
    upon_a_base = set[bool]()
    run = engine.runtime.run

    def noting(batch: PackedBatch) -> Logits:
        logits = run(batch)
        if isinstance(engine.runtime, SegmentRuntime):
            upon_a_base.update(cache.base is not None for _, cache in engine.runtime._caches.last)
        return logits

    monkeypatch.setattr(engine.runtime, "run", noting)
    found = played(engine, *requests)
    assert (True in upon_a_base) == (layout == "segments")
    for request in requests:
        tokens = [token for event in found[request.id] for token in event.token_ids]
        assert tokens == denoise(eager, request.prompt_ids, RULES["static"], 9).tokens
    assert [found[str(n)][0].cached_tokens for n in range(5)] == [0, 160, 160, 160, 160]
    engine.runtime.close()
    engine.loop.close()


def test_rounded_weights_and_caches_give_everybody_the_answer_it_gets_alone(source: Path, tmp_path: Path) -> None:
    """The default on a CPU: int4 weights, int8 keys and values; what of a block is not kept is rounded as well."""
    compile_bundle(CompileArguments(source, tmp_path / "int4", parity_tokens=8), SilentProgress())
    assert load_manifest(tmp_path / "int4").kv_dtype == "int8"
    engine = assemble(EngineConfig(bundle=str(tmp_path / "int4"), threads=1, deterministic=True))
    requests = [
        Request(f"{rule}{length}", prompt_of(length), params_of(settings, 12))
        for rule, settings in RULES.items()
        for length in (3, 13, 50)
    ]
    together = answers(engine, *requests)
    for request in requests:
        assert answers(engine, request) == {request.id: together[request.id]}
    engine.runtime.close()
    engine.loop.close()


@pytest.mark.parametrize(("block_length", "layout"), [(1, "segments"), (6, "segments"), (16, "fixed"), (32, "pool")])
def test_blocks_of_other_lengths(block_length: int, layout: str, tmp_path: Path) -> None:
    """Also one that no block ends with: the first block of a prompt is shared with nobody then."""
    source = write_sdar(tmp_path / "source", block_length, MASK, seed=1)
    eager, settings = EagerBlocks.load(source), Denoising(block_length, MASK, max(1, block_length // 3))
    arguments = CompileArguments(source, tmp_path / "bundle", quant=Quant.FP32, parity_tokens=8)
    compile_bundle(replace(arguments, **LAYOUTS[layout]), SilentProgress())
    engine = assemble(EngineConfig(bundle=str(tmp_path / "bundle"), threads=1))
    for rule in (Unmasking.STATIC_CONFIDENCE, Unmasking.SEQUENTIAL):
        chosen = replace(settings, unmasking=rule)
        requests = [Request(f"{rule}{length}", prompt_of(length), params_of(chosen, 20)) for length in (2, 33, 70)]
        together = answers(engine, *requests)
        for request in requests:
            assert together[request.id] == denoise(eager, request.prompt_ids, chosen, 20).tokens
    engine.runtime.close()
    engine.loop.close()
