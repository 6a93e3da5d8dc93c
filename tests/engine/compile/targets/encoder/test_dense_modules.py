"""Linear layers behind the pooling, as EmbeddingGemma has them, against torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.bundle.specs import PoolingKind
from engine.client.pooling import finished
from engine.errors import CompileError
from engine.runtime.encoder import EncoderRuntime, pack_texts
from engine.runtime.sessions import cpu_provider
from tests.engine.compile.targets.encoder.test_transformers_vectors import (
    CASES,
    build_encoder,
    oracle,
    pooling_of,
    texts_of,
)
from tests.tiny_encoder import write_encoder, write_pooling

IDENTITY = "torch.nn.modules.linear.Identity"


def add_dense(folder: Path, **changes: Any) -> torch.nn.Sequential:
    """Two layers between Pooling and Normalize, in the layout of sentence-transformers. changes: of the first."""
    layers = torch.nn.Sequential(torch.nn.Linear(64, 192, bias=False), torch.nn.Linear(192, 48)).double()
    modules = json.loads((folder / "modules.json").read_text())
    for place, layer in enumerate(layers, start=2):
        at = folder / f"{place}_Dense"
        at.mkdir()
        assert isinstance(layer, torch.nn.Linear)
        config = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        config |= {"activation_function": IDENTITY} | (changes if place == 2 else {})
        (at / "config.json").write_text(json.dumps(config))
        save_file(
            {f"linear.{name}": value.float() for name, value in layer.state_dict().items()}, at / "model.safetensors"
        )
        modules.insert(place, {"idx": place, "path": at.name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return layers


@pytest.mark.parametrize("case", ["embedding-gemma", "bert"])
def test_vectors_are_those_behind_the_layers(case: str, tmp_path: Path) -> None:
    """Of a runtime as the worker has it, of length 1."""
    family, changes = CASES[case]
    torch.manual_seed(4)
    model = write_encoder(tmp_path / "source", family, **changes)
    write_pooling(tmp_path / "source", "mean_tokens", query="task: search | query: ")
    layers = add_dense(tmp_path / "source")
    manifest = build_encoder(tmp_path / "source", tmp_path / "bundle")
    spec, texts = pooling_of(manifest), texts_of(1, 17, 30, 40)
    assert (spec.dimensions, spec.prompts) == (48, {"query": "task: search | query: "})
    runtime = EncoderRuntime(tmp_path / "bundle", manifest, cpu_provider(1))
    found = [finished(vector.tobytes(), spec) for vector in runtime.run(pack_texts(texts, 96)).decoded()]
    assert set(runtime.part_seconds) == {"inputs", "layers"}
    runtime.close()
    for vector, text in zip(found, texts, strict=True):
        with torch.no_grad():
            wanted = layers(torch.from_numpy(oracle(model, text, PoolingKind.MEAN, length=None))).numpy()
        np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "2_Dense: activation .* is not supported"),
        ({"in_features": 32}, "in_features must be 64"),
        ({"out_features": 100}, "linear.weight has shape"),
    ],
)
def test_layers_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_encoder(tmp_path / "source")
    write_pooling(tmp_path / "source", "mean_tokens")
    add_dense(tmp_path / "source", **changes)
    with pytest.raises(CompileError, match=message):
        build_encoder(tmp_path / "source", tmp_path / "bundle")


def test_layers_behind_the_norm_are_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path / "source")
    write_pooling(tmp_path / "source", "mean_tokens")
    add_dense(tmp_path / "source")
    modules = json.loads((tmp_path / "source" / "modules.json").read_text())
    (tmp_path / "source" / "modules.json").write_text(json.dumps([*modules[:2], modules[-1], *modules[2:-1]]))
    with pytest.raises(CompileError, match="in the order Transformer, Pooling, Dense, Normalize"):
        build_encoder(tmp_path / "source", tmp_path / "bundle")
