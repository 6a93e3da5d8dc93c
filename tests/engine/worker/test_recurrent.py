"""A bundle with recurrent layers behind the scheduler: the tokens of transformers, however they come to be computed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest, save_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import FinishReason, Request, SamplingParams
from engine.worker.assembly import assemble
from engine.worker.settings import recurrent_settings
from engine.worker.step import EngineLoop
from tests.hybrid import Hybrid, text_of

PROMPTS = {f"r{length}": text_of(length, length) for length in (1, 3, 16, 33, 70, 150)}
TOKENS = 20


@pytest.fixture
def open_loop(hybrid: Hybrid) -> Callable[..., EngineLoop]:
    """open(**settings) -> a loop over the fp32 bundle."""

    def open_with(bundle: Path = hybrid.bundle, **settings: object) -> EngineLoop:
        return assemble(EngineConfig(str(bundle), threads=1, **settings)).loop  # type: ignore[arg-type]

    return open_with


def add(loop: EngineLoop, name: str, prompt: tuple[int, ...], tokens: int = TOKENS, done: tuple[int, ...] = ()) -> None:
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    loop.add(Request(name, prompt, params), done, seed=1, now_s=0.0)


def run(loop: EngineLoop) -> dict[str, list[int]]:
    """What every sequence got, until all have ended."""
    outputs: dict[str, list[int]] = {}
    while loop.scheduler.has_work:
        report = loop.step()
        assert report.failures == ()
        for event in report.events:
            outputs.setdefault(event.id, []).extend(event.token_ids)
    return outputs


@pytest.mark.parametrize("deterministic", [False, True], ids=["free", "one-shape"])
@pytest.mark.parametrize("max_rows", [256, 37, 5])
def test_greedy_tokens_of_many_sequences(
    hybrid: Hybrid, open_loop: Callable[..., EngineLoop], max_rows: int, deterministic: bool
) -> None:
    """Chunks of any length, prompts and decodes in one step."""
    loop = open_loop(max_rows=max_rows, deterministic=deterministic)
    for name, prompt in PROMPTS.items():
        add(loop, name, prompt)
    assert run(loop) == {name: hybrid.greedy(prompt, TOKENS) for name, prompt in PROMPTS.items()}


def test_a_conversation_goes_on_from_its_last_turn(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    loop = open_loop()
    prompt = PROMPTS["r33"]
    add(loop, "turn 1", prompt)
    first = run(loop)["turn 1"]
    longer = (*prompt, *first, *text_of(9))
    add(loop, "turn 2", longer)
    assert run(loop)["turn 2"] == hybrid.greedy(longer, TOKENS)
    assert loop.scheduler.counters.prefix_hits == 48  # of 53 tokens


def test_prefixes_of_many_are_computed_once(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    """Keys and values of 144 tokens are held once, and every sequence has a state of its own behind them."""
    loop, prompt = open_loop(), PROMPTS["r150"]
    for index in range(4):
        add(loop, f"s{index}", (*prompt, index))
    assert run(loop) == {f"s{index}": hybrid.greedy((*prompt, index), TOKENS) for index in range(4)}
    assert loop.scheduler.counters.prefix_hits == 3 * 144


def test_sequences_that_gave_their_columns_back(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    loop = open_loop(kv_slots=192, reserve_tokens=0)
    prompts = {name: text_of(40, seed) for seed, name in enumerate("abcd")}
    for name, prompt in prompts.items():
        add(loop, name, prompt, 30)
    assert run(loop) == {name: hybrid.greedy(prompt, 30) for name, prompt in prompts.items()}
    assert loop.scheduler.counters.preemptions > 0


def test_another_worker_goes_on_with_what_was_delivered(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    loop, prompt = open_loop(), PROMPTS["r33"]
    whole = hybrid.greedy(prompt, TOKENS)
    add(loop, "a", prompt, done=tuple(whole[:9]))
    assert run(loop)["a"] == whole[9:]


def test_the_default_storage_serves_what_it_computes(int4_hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    """int4 for few rows, int8 for many, keys and values in int8: one sequence a step gives what many give."""
    together, alone = open_loop(int4_hybrid.bundle), open_loop(int4_hybrid.bundle)
    for name, prompt in PROMPTS.items():
        add(together, name, prompt)
    outputs = run(together)
    for name, prompt in PROMPTS.items():
        add(alone, name, prompt)
        assert run(alone)[name] == outputs[name]
    add(together, "again", PROMPTS["r150"])
    assert run(together)["again"] == outputs["r150"] and together.scheduler.counters.prefix_hits == 144


def test_a_prompt_that_is_scored(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    loop, prompt = open_loop(), PROMPTS["r33"]
    params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0)
    loop.add(Request("a", prompt, params), (), seed=1, now_s=0.0)
    events = [event for _ in range(9) if loop.scheduler.has_work for event in loop.step().events]
    assert events[-1].finish is FinishReason.LENGTH
    logits = hybrid.logits(prompt).astype(np.float64)
    expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(32), list(prompt[1:])]
    found = [item.logprob for event in events for item in event.prompt_logprobs]
    assert np.allclose(found, expected, atol=1e-3)


def test_running_sequences_are_bounded_by_their_states(hybrid: Hybrid, caplog: pytest.LogCaptureFixture) -> None:
    manifest = load_manifest(hybrid.bundle)
    assert recurrent_settings(manifest, EngineConfig("")) == EngineConfig("", prediction_rows=0)
    assert manifest.model.recurrent is not None
    heads = msgspec.structs.replace(manifest.model.recurrent, value_heads=4096, key_dim=256, value_dim=64)
    large = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, recurrent=heads))
    each = large.state_bytes_per_sequence
    with caplog.at_level("INFO", "hexserve.worker"):
        assert recurrent_settings(large, EngineConfig("")).max_running == 4 * 1024**3 // (2 * each) == 1
    assert f"max_running: 1 instead of 256, as the states of each sequence take {2 * each / 1e6:.1f} MB" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lookup_rows": 3},
            "lookup_rows = 3: qwen3_5 has recurrent layers, whose state cannot take back a wrong guess",
        ),
        ({"draft": "other"}, "draft = other: qwen3_5 has recurrent layers, whose state cannot take back a wrong guess"),
        ({"kv_file": "blocks"}, "kv_file = blocks: qwen3_5 has recurrent layers, whose states it does not hold"),
    ],
)
def test_what_a_state_cannot_do_is_refused_by_name(
    open_loop: Callable[..., EngineLoop], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        open_loop(deterministic=True, **settings)


def test_a_request_s_own_prediction_changes_nothing(hybrid: Hybrid, open_loop: Callable[..., EngineLoop]) -> None:
    loop, prompt = open_loop(), PROMPTS["r33"]
    whole = hybrid.greedy(prompt, TOKENS)
    assert loop.scheduler.rules.config.prediction_rows == 0
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    loop.add(Request("a", prompt, params, prediction=tuple(whole)), (), seed=1, now_s=0.0)
    assert run(loop)["a"] == whole and loop.scheduler.counters.drafted_rows == 0


@pytest.mark.parametrize("megabytes", [0, 1])
def test_host_memory_for_prefixes_holds_snapshots(
    hybrid: Hybrid, open_loop: Callable[..., EngineLoop], megabytes: int
) -> None:
    loop = open_loop(kv_offload_mb=megabytes)
    bytes_each = load_manifest(hybrid.bundle).state_bytes_per_sequence
    assert loop.scheduler.rules.state_snapshots == megabytes * 1024**2 // bytes_each
    for name in ("a", "b"):
        add(loop, name, PROMPTS["r70"])
        assert run(loop)[name] == hybrid.greedy(PROMPTS["r70"], TOKENS)
    assert loop.scheduler.counters.prefix_hits == (64 if megabytes else 0)


def changed(bundle: Path, folder: Path, change: Callable[[Manifest], Manifest]) -> Path:
    """The same files with another manifest."""
    shutil.copytree(bundle, folder)
    save_manifest(folder, change(load_manifest(bundle)))
    return folder


def without(manifest: Manifest, *names: str) -> Manifest:
    graphs = tuple(graph for graph in manifest.graphs if graph.name not in names)
    return msgspec.structs.replace(manifest, graphs=graphs)


def with_layers(manifest: Manifest, *layers: int) -> Manifest:
    assert manifest.model.recurrent is not None
    recurrent = msgspec.structs.replace(manifest.model.recurrent, layers=layers)
    return msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, recurrent=recurrent))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: without(manifest, "recurrent"), "has one graph recurrent for all of them"),
        (lambda manifest: msgspec.structs.replace(manifest, conv_weights=""), "has conv_weights ''"),
        (lambda manifest: msgspec.structs.replace(manifest, conv_weights="tokenizer.json"), "convolutions take"),
        (lambda manifest: with_layers(manifest, 0, 1, 2, 4, 5), "graph linear_7_of_9 lacks the inputs"),
        (lambda manifest: with_layers(manifest, 1, 0), "not ascending numbers below 8"),
        (lambda manifest: with_layers(manifest, 8), "not ascending numbers below 8"),
    ],
)
def test_manifests_that_contradict_themselves(
    hybrid: Hybrid,
    open_loop: Callable[..., EngineLoop],
    tmp_path: Path,
    change: Callable[[Manifest], Manifest],
    message: str,
) -> None:
    with pytest.raises(BundleError, match=message):
        open_loop(changed(hybrid.bundle, tmp_path / "changed", change))
