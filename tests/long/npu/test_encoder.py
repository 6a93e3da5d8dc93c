"""Encoders as context binaries of an X Elite, in the HTP emulator: vectors against transformers, whoever is beside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.request import Pooling, Request, SamplingParams
from engine.runtime.qnn.provider import EMULATOR
from engine.worker.assembly import Assembled, assemble
from tests.tiny_encoder import VOCAB, write_encoder, write_pooling

FAMILIES = ("Bert", "NomicBert")
LENGTHS = (3, 11, 1, 9)


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Assembled, Any]]:
    """A worker's parts over binaries of 16 and 32 rows, and the model of transformers."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("encoder")
    model = write_encoder(folder / "tiny", request.param)
    write_pooling(folder / "tiny", "mean_tokens")
    arguments = CompileArguments(
        folder / "tiny",
        folder / "bundle",
        target=Target.X_ELITE,
        quant=Quant.FP16,
        rows=(16, 32),
        share_weights=False,
    )
    manifest = compile_bundle(arguments, SilentProgress())
    assert manifest.npu is not None
    assert manifest.npu.parity_on == EMULATOR
    assert manifest.parity["cosine"] > 0.9999
    assert len(load_manifest(folder / "bundle").npu.binaries) == 2  # type: ignore[union-attr]
    assembled = assemble(EngineConfig(bundle=str(folder / "bundle")))
    assert assembled.ready.device == EMULATOR
    yield assembled, model
    assembled.loop.close()
    assembled.runtime.close()


def vectors(made: Assembled, texts: list[tuple[int, ...]]) -> np.ndarray:
    for number, text in enumerate(texts):
        made.loop.add(Request(str(number), text, SamplingParams(max_tokens=0), pooling=Pooling()), (), 0, 0.0)
    found = {}
    while made.loop.has_work:
        report = made.loop.step()
        assert not report.failures
        found.update({event.id: np.frombuffer(event.vector, "<f4") for event in report.events})
    return np.array([found[str(number)] for number in range(len(texts))], np.float64)


def test_vectors_in_the_emulator(made: tuple[Assembled, Any]) -> None:
    """All of them in one pass of 32 rows, then each alone in one of 16."""
    assembled, model = made
    draws = np.random.default_rng(4).integers(5, VOCAB, sum(LENGTHS))
    texts = [tuple(map(int, part)) for part in np.split(draws, np.cumsum(LENGTHS)[:-1])]
    with torch.no_grad():
        hidden = [model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy() for text in texts]
    wanted = np.array([rows.mean(axis=0) for rows in hidden], np.float64)
    together = vectors(assembled, texts)
    alone = np.concatenate([vectors(assembled, [text]) for text in texts])
    for found in (together, alone):
        cosines = np.sum(found * wanted, axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
        assert cosines.min() > 0.9999


def test_scores_of_pairs_in_the_emulator(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    alike = {"num_labels": 1, "type_vocab_size": 1, "pad_token_id": 0}
    model = write_encoder(tmp_path / "tiny", "XLMRoberta", "ForSequenceClassification", **alike)
    bundle = tmp_path / "bundle"
    arguments = CompileArguments(tmp_path / "tiny", bundle, target=Target.X_ELITE, quant=Quant.FP16, rows=(16,))
    assert compile_bundle(arguments, SilentProgress()).parity["cosine"] > 0.9999
    assembled = assemble(EngineConfig(bundle=str(bundle)))
    text = tuple(range(5, 14))
    (found,) = vectors(assembled, [text])
    assembled.loop.close()
    assembled.runtime.close()
    with torch.no_grad():
        assert found.tolist() == pytest.approx([model(input_ids=torch.tensor([text])).logits[0, 0].item()], abs=5e-3)
