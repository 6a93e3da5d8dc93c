"""Several texts of speech share steps, and each is what transformers writes alone."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle.manifest import TensorSpec, load_manifest
from engine.bundle.speech import check_speech
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Pooling, Request, SamplingParams, SpeechRules
from engine.worker.assembly import assemble
from engine.worker.step import EngineLoop
from tests.tiny_whisper import (
    END,
    HEADS,
    NO_TIMES,
    POSITIONS,
    PROMPT,
    START,
    VOCAB,
    by_transformers,
    features,
    network,
    order_is_kept,
    request,
    run,
    tokens_of,
    write_ctranslate2,
    write_folder,
)

TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("whisper")
    return compiled(write_folder(made / "source"), made / "bundle")


def compiled(source: Path, output: Path, quant: Quant = Quant.FP32) -> Path:
    compile_bundle(CompileArguments(source, output, quant=quant), SilentProgress())
    return output


def open_loop(folder: Path, slots: int = 3) -> EngineLoop:
    return assemble(EngineConfig(bundle=str(folder), max_running=slots)).loop


def test_each_as_alone(folder: Path) -> None:
    """Seven texts in three slots: each is joined and left by others."""
    loop = open_loop(folder)
    for number in range(7):
        loop.add(request(number, TOKENS), (), 0, 0.0)
    found = run(loop)
    wanted = {f"text-{number}": by_transformers(number, TOKENS) for number in range(7)}
    assert {name: tokens_of(events) for name, events in found.items()} == wanted
    assert len({tuple(tokens) for tokens in wanted.values()}) > 3
    counters = loop.stats()
    assert counters.steps < sum(len(tokens) for tokens in wanted.values())


def test_one_sound_is_heard_once(folder: Path) -> None:
    """Two texts of the same sound at once: the second one takes over what the first has heard."""
    loop = open_loop(folder)
    loop.add(request(1, TOKENS), (), 0, 0.0)
    loop.add(replace(request(1, TOKENS), id="again"), (), 0, 0.0)
    loop.add(request(2, TOKENS), (), 0, 0.0)
    found = run(loop)
    assert tokens_of(found["text-1"]) == tokens_of(found["again"]) == by_transformers(1, TOKENS)
    assert tokens_of(found["text-2"]) == by_transformers(2, TOKENS)


def test_a_decoder_with_a_mask_is_of_an_older_version(folder: Path) -> None:
    manifest = load_manifest(folder)
    mask = TensorSpec("attention_mask", "float32", ("batch", 1, "tokens", "columns"))
    graphs = tuple(
        msgspec.structs.replace(graph, inputs=(*graph.inputs, mask)) if graph.name == "decoder" else graph
        for graph in manifest.graphs
    )
    with pytest.raises(BundleError, match="older version: make the bundle anew with `hexserve compile`"):
        check_speech(msgspec.structs.replace(manifest, graphs=graphs))


def test_goes_on_behind_an_earlier_worker(folder: Path) -> None:
    wanted = by_transformers(1, TOKENS)
    loop = open_loop(folder)
    loop.add(request(1, TOKENS), tuple(wanted[:5]), 0, 0.0)
    assert tokens_of(run(loop)["text-1"]) == wanted[5:]


def test_abort_leaves_the_others(folder: Path) -> None:
    loop = open_loop(folder, slots=2)
    for number in range(3):
        loop.add(request(number, TOKENS), (), 0, 0.0)
    loop.step()
    loop.abort("text-0")
    found = run(loop)
    assert tokens_of(found["text-1"]) == by_transformers(1, TOKENS)
    assert tokens_of(found["text-2"]) == by_transformers(2, TOKENS)


def test_times_are_in_order(folder: Path) -> None:
    rules = SpeechRules((), (), END, NO_TIMES + 1, times=True, latest_start=10)
    loop = open_loop(folder)
    for number in range(3):
        loop.add(request(number, TOKENS, rules, PROMPT[:-1]), (), 0, 0.0)
    for events in run(loop).values():
        tokens = tokens_of(events)
        assert NO_TIMES + 1 <= tokens[0] <= NO_TIMES + 11
        assert order_is_kept(tokens, NO_TIMES + 1)


def test_languages_and_alignment(folder: Path) -> None:
    """What is pooled: the logits behind the first token, and how far tokens look at what is heard."""
    import torch

    loop, params = open_loop(folder), SamplingParams(max_tokens=0)
    audio = features(4).tobytes()
    loop.add(Request("language", (START,), params, audio=audio, pooling=Pooling()), (), 0, 0.0)
    loop.add(Request("words", PROMPT, params, audio=audio, pooling=Pooling(alignment=True)), (), 0, 0.0)
    found = run(loop)
    logits, scores = (np.frombuffer(found[name][0].vector, "<f4") for name in ("language", "words"))
    network().set_attn_implementation("eager")
    with torch.no_grad():
        said = network()(
            input_features=torch.tensor(features(4)[None]),
            decoder_input_ids=torch.tensor([PROMPT]),
            output_attentions=True,
        )
    assert np.abs(logits - said.logits[0, 0].numpy()).max() < 1e-3
    assert logits.shape == (VOCAB,)
    looked = scores.reshape(len(HEADS), len(PROMPT), POSITIONS)
    shares = np.exp(looked - looked.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    wanted = np.stack([said.cross_attentions[layer][0, head].numpy() for layer, head in HEADS])
    assert np.abs(shares - wanted).max() < 1e-4


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-4), ("float16", 0.05), ("int8", 0.5)])
def test_ctranslate2_files(tmp_path: Path, folder: Path, dtype: str, limit: float) -> None:
    other = compiled(write_ctranslate2(tmp_path / "source", dtype), tmp_path / "bundle")
    found = []
    for place in (folder, other):
        loop = open_loop(place, slots=1)
        loop.add(Request("a", PROMPT, SamplingParams(0), audio=features(2).tobytes(), pooling=Pooling()), (), 0, 0.0)
        found.append(np.frombuffer(run(loop)["a"][0].vector, "<f4"))
    assert np.abs(found[0] - found[1]).max() < limit * np.abs(found[0]).max()


def test_bad_requests(folder: Path) -> None:
    loop = open_loop(folder)
    with pytest.raises(ValueError, match="bytes of audio"):
        loop.add(Request("a", PROMPT, SamplingParams(4)), (), 0, 0.0)
    long = Request("a", PROMPT * 20, SamplingParams(4), audio=features(0).tobytes())
    with pytest.raises(ValueError, match="tokens"):
        loop.add(long, (), 0, 0.0)
