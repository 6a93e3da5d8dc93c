"""What a checkpoint is for, told from its files, and what cannot be compiled for a task."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask
from engine.compile.arguments import Layout, Quant
from engine.compile.sources.checkpoint import read_json
from engine.errors import CompileError, UnsupportedModel
from tests.embedders import write_embedder, write_reranker

Build = Callable[..., tuple[Path, Manifest]]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("checkpoints") / "embedder")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("checkpoints") / "reranker")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """changed(source, {file: content or None}) -> a copy with files written anew, merged into JSON, or left out."""

    def change(source: Path, files: dict[str, Any]) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(source, folder)
        for name, content in files.items():
            path = folder / name
            if content is None:
                path.unlink()
            elif isinstance(content, dict) and path.exists():
                path.write_text(json.dumps(read_json(path) | content))
            else:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return change


def module(kind: str, path: str = "") -> dict[str, object]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ({}, ModelTask.EMBED),
        ({"modules.json": None}, ModelTask.EMBED),
        ({"config.json": {"architectures": ["Qwen3ForCausalLM"]}}, ModelTask.EMBED),
    ],
    ids=["both", "a model without a head", "pooling"],
)
def test_an_embedder_is_recognised(
    files: dict[str, Any], task: ModelTask, embedder: Path, changed: Callable[..., Path], build: Build
) -> None:
    _, manifest = build(changed(embedder, files), quant=Quant.FP32)
    assert manifest.task is task and manifest.pooling is not None
    assert manifest.pooling.end_ids == (0,) and manifest.row_outputs == manifest.model.hidden


@pytest.mark.parametrize(
    "files",
    [
        {"modules.json": [module("Transformer"), module("LogitScore")]},
        {"chat_template.jinja": 'Note that the answer can only be "yes" or "no". {{ messages }}'},
    ],
    ids=["modules", "template"],
)
def test_a_reranker_is_recognised(
    files: dict[str, Any], reranker: Path, changed: Callable[..., Path], build: Build
) -> None:
    _, manifest = build(changed(reranker, files), quant=Quant.FP32)
    assert manifest.task is ModelTask.RERANK and manifest.rerank is not None
    assert manifest.row_outputs == manifest.model.vocab


def test_a_chat_model_is_neither_unless_it_is_said(reranker: Path, build: Build) -> None:
    _, manifest = build(reranker, quant=Quant.FP32)
    assert (manifest.task, manifest.pooling, manifest.rerank) == (ModelTask.GENERATE, None, None)
    _, said = build(reranker, quant=Quant.FP32, task=ModelTask.EMBED)  # its head is left out
    assert said.pooling is not None and said.pooling.end_ids == ()


def test_vectors_are_as_long_as_they_come_without_a_module_that_normalises(
    embedder: Path, changed: Callable[..., Path], build: Build
) -> None:
    files = {"modules.json": [module("Transformer"), module("Pooling", "1_Pooling")]}
    _, manifest = build(changed(embedder, files), quant=Quant.FP32)
    assert manifest.pooling is not None and not manifest.pooling.normalise


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}, {}, "pooling_mode_mean_tokens"),
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, {}, "pooling_mode_cls"),
        ({"modules.json": [module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]}, {}, "Dense"),
        ({"modules.json": [module("Pooling", "../1_Pooling")]}, {}, "modules.json must list"),
        ({"config.json": {"is_causal": False}}, {}, "both ways"),
        ({}, {"whole_context": (64,)}, "--layout segments and pool"),
        ({}, {"layout": Layout.FUSED, "rows": (8,), "same_past": (65,)}, "--layout segments and pool"),
    ],
    ids=["mean", "newer file", "dense", "outside", "both ways", "whole context", "fused"],
)
def test_what_is_not_supported_is_refused_by_name(
    files: dict[str, Any],
    options: dict[str, Any],
    message: str,
    embedder: Path,
    changed: Callable[..., Path],
    build: Build,
) -> None:
    with pytest.raises((UnsupportedModel, CompileError), match=message):
        build(changed(embedder, files), quant=Quant.FP32, **options)


def test_a_judge_must_be_able_to_say_yes(tiny_checkpoint: Path, build: Build) -> None:
    with pytest.raises(CompileError, match="'yes' must be one token"):
        build(tiny_checkpoint, task=ModelTask.RERANK)
