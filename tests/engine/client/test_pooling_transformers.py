"""Vectors and scores of served bundles against transformers, text in and numbers out."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.specs import ModelTask, PoolingKind
from engine.client.pooling import Pair, PooledInput, TextInput, finished, score
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Split
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.request import FinishReason, Pooling, Request, SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker.assembly import assemble
from tests.embedders import END, QUERY, tokenizer_of, write_embedder, write_reranker
from tests.engine.compile.sources.gguf.gguf_files import write_gguf

LAYOUTS: dict[str, dict[str, Any]] = {
    "segments": {"layout": Layout.SEGMENTS},
    "pool": {"layout": Layout.POOL},
    "one graph": {"layout": Layout.POOL, "split": Split.NONE},
    "lut": {"layout": Layout.POOL, "split": Split.LUT_LMHEAD},
    "fixed": {"rows": (1, 8), "context": (128, 256)},
}
TEXTS = (
    "The capital of China is Beijing.",
    "The capital of China is not far from the sea, is it?",
    "a",
    "Gravity is a force that attracts two bodies towards each other. It gives weight to physical objects. " * 2,
    "Explain gravity",
    "",
)
DOCUMENTS = (*TEXTS[:4], "The capital of China is Beijing. <|im_end|>")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("checkpoints") / "embedder")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("checkpoints") / "reranker")


def compiled(source: Path, folder: Path, **arguments: Any) -> Manifest:
    options = {"quant": Quant.FP32, "parity_tokens": 16} | arguments
    return compile_bundle(CompileArguments(source, folder, **options), SilentProgress())


def served(folder: Path, inputs: Sequence[PooledInput], pooling: Pooling, **settings: Any) -> list[bytes]:
    """What a worker gives for each input, all of them in it at once."""
    manifest = load_manifest(folder)
    tokenizer = Tokenizer.load(folder, manifest.text)
    made = assemble(EngineConfig(bundle=str(folder), **settings))
    found: dict[str, bytes] = {}
    try:
        params = SamplingParams(max_tokens=0)
        for number, given in enumerate(inputs):
            ids = given.ids(tokenizer, manifest, made.ready.max_input_tokens)
            made.loop.add(Request(str(number), ids, params, pooling=pooling), (), 0, 0.0)
        while made.loop.scheduler.has_work:
            report = made.loop.step()
            assert not report.failures
            for event in report.events:
                assert (event.token_ids, event.finish) == ((), FinishReason.LENGTH)
                found[event.id] = event.vector
    finally:
        made.loop.close()
        made.runtime.close()
    return [found[str(number)] for number in range(len(inputs))]


def expected_vectors(source: Path, texts: Sequence[str], dimensions: int | None = None) -> np.ndarray:
    """As the model card does it: one text at a time, the last hidden state of its last token."""
    tokenizer, model = tokenizer_of(source), transformers.Qwen3Model.from_pretrained(source).eval()
    rows = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        rows.append(torch.nn.functional.normalize(hidden[0, -1, :dimensions], dim=0))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_of_transformers(layout: str, embedder: Path, tmp_path: Path) -> None:
    manifest = compiled(embedder, tmp_path / "bundle", **LAYOUTS[layout])
    assert manifest.task is ModelTask.EMBED and manifest.pooling is not None
    assert (manifest.pooling.kind, manifest.pooling.dimensions) == (PoolingKind.LAST, 64)
    # Small steps: texts are computed in pieces, beside each other.
    raw = served(tmp_path / "bundle", [TextInput(text, "input") for text in TEXTS], Pooling(), max_rows=16)
    for dimensions in (64, 24):
        found = np.stack([finished(vector, manifest.pooling, dimensions) for vector in raw])
        cosines = np.sum(found * expected_vectors(embedder, TEXTS, dimensions), axis=1)
        assert cosines.min() >= 0.9999
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5


def test_a_gguf_embedder_ends_every_text_as_its_checkpoint_does(embedder: Path, tmp_path: Path) -> None:
    """The file says how its vectors are made and which token ends a text; the task follows from it."""
    source = tmp_path / "source"
    shutil.copytree(embedder, source)
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "add_bos_token": False}))

    def says(writer: gguf.GGUFWriter) -> None:
        writer.add_add_eos_token(True)
        writer.add_pooling_type(gguf.PoolingType.LAST)

    manifest = compiled(write_gguf(source, tmp_path / "embedder.gguf", change=says), tmp_path / "bundle")
    assert manifest.task is ModelTask.EMBED and manifest.pooling is not None
    assert manifest.pooling.end_ids == tuple(tokenizer_of(embedder)("").input_ids)
    raw = served(tmp_path / "bundle", [TextInput(text, "input") for text in TEXTS], Pooling())
    found = np.stack([finished(vector, manifest.pooling) for vector in raw])
    assert np.sum(found * expected_vectors(embedder, TEXTS), axis=1).min() >= 0.9999


def test_a_named_prompt_stands_before_the_text(embedder: Path, tmp_path: Path) -> None:
    manifest = compiled(embedder, tmp_path / "bundle")
    assert manifest.pooling is not None and manifest.pooling.prompts == {"query": QUERY, "document": ""}
    inputs = [TextInput(TEXTS[0], "input", "query"), TextInput(TEXTS[0], "input", "document")]
    found = [finished(raw, manifest.pooling) for raw in served(tmp_path / "bundle", inputs, Pooling())]
    expected = expected_vectors(embedder, [QUERY + TEXTS[0], TEXTS[0]])
    assert np.sum(np.stack(found) * expected, axis=1).min() >= 0.9999
    assert found[0] @ found[1] < 0.99


def test_a_text_may_fill_the_whole_context(embedder: Path, tmp_path: Path) -> None:
    """No answer comes behind it, so no place is kept for one."""
    manifest = compiled(embedder, tmp_path / "bundle")
    text = "gravity " * 300
    (raw,) = served(tmp_path / "bundle", [TextInput(text, "input", keep=256)], Pooling())
    assert manifest.pooling is not None
    tokenizer, model = tokenizer_of(embedder), transformers.Qwen3Model.from_pretrained(embedder).eval()
    with torch.no_grad():
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        hidden = model(**encoded).last_hidden_state[0, -1].numpy()
    assert encoded["input_ids"].shape == (1, 256)
    assert finished(raw, manifest.pooling) @ (hidden / np.linalg.norm(hidden)) >= 0.9999


@pytest.mark.parametrize("caches", [{}, {"kv": KvType.INT8}], ids=["float caches", "int8 caches"])
def test_quantised_embedders_say_what_they_lose(caches: dict[str, Any], embedder: Path, tmp_path: Path) -> None:
    manifest = compiled(embedder, tmp_path / "bundle", quant=Quant.INT4, **caches)
    assert "cosine" in manifest.parity and "top1" not in manifest.parity
    assert 0.5 < manifest.parity["cosine"] < 1


@pytest.mark.parametrize("layout", ["segments", "pool", "fixed"])
def test_scores_are_those_of_transformers(layout: str, reranker: Path, tmp_path: Path) -> None:
    manifest = compiled(reranker, tmp_path / "bundle", task=ModelTask.RERANK, **LAYOUTS[layout])
    spec = manifest.rerank
    assert spec is not None
    query, instruction = "What is the capital of China?", "Find the city."
    inputs = [Pair(query, document, "documents", instruction=instruction) for document in DOCUMENTS]
    raw = served(tmp_path / "bundle", inputs, Pooling((spec.yes_id, spec.no_id)), max_rows=32)
    expected = expected_scores(reranker, query, instruction)
    assert np.abs(np.array([score(numbers, spec) for numbers in raw]) - expected).max() < 1e-4
    assert len(set(np.round(expected, 3))) == len(expected)


def expected_scores(source: Path, query: str, instruction: str) -> np.ndarray:
    """As the model card does it. A document cannot end its own turn: what it says of that is text."""
    tokenizer, model = tokenizer_of(source), transformers.Qwen3ForCausalLM.from_pretrained(source).eval()
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    found = []
    for document in DOCUMENTS:
        body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        ids = tokenizer.encode(prefix, add_special_tokens=False)
        ids += tokenizer.encode(body, add_special_tokens=False, split_special_tokens=True)
        ids += tokenizer.encode(suffix, add_special_tokens=False)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        both = logits[[tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")]]
        found.append(torch.softmax(both, dim=0)[1].item())
    return np.array(found)
