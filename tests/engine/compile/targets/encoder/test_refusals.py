"""What an encoder's compilation refuses, by name, and what it reads from the files beside a checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask, PoolingKind
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Split, Target, default_quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import CompileError
from engine.models.config_fields import LARGEST_IN_FLOAT
from engine.runtime.interface import PackedSegment
from tests.tiny_encoder import write_encoder, write_pooling


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "tiny")
    return tmp_path / "tiny"


def build(source: Path, **options: Any) -> Manifest:
    return compile_bundle(
        CompileArguments(source, source.parent / "bundle", **({"quant": Quant.FP32} | options)), SilentProgress()
    )


def change(path: Path, **values: object) -> None:
    """Set fields of a JSON file; None removes one."""
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({k: v for k, v in (found | values).items() if v is not None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": (64,), "rows": (8,)}, "--context is for models that generate"),
        ({"whole_context": (64,)}, "--whole-context is for models that generate"),
        ({"split": Split.LMHEAD}, "--split is for models that generate"),
        ({"kv": KvType.INT8}, "--kv is for models that generate"),
        ({"head": Quant.INT8}, "--head is for models that generate"),
        ({"lora": True}, "--lora is for models that generate"),
        ({"amx": True}, "--amx is for models that generate"),
        ({"layout": Layout.SEGMENTS}, "--layout segments is for models that generate"),
        ({"quant": Quant.W8A16}, "takes --quant fp32, int8, int4, keep, not w8a16"),
        ({"target": Target.X_ELITE}, "--target x-elite takes --quant fp16, w4, not fp32"),
        ({"rows": (5000,)}, "--rows takes numbers from 1 to 4096, not 5000"),
        ({"share_weights": False}, "are for NPUs"),
        ({"task": ModelTask.GENERATE}, "--task generate is not what BertModel is for: it takes --task embed"),
        ({"task": ModelTask.RERANK}, "--task rerank is not what BertModel is for"),
    ],
)
def test_options(source: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        build(source, **options)
    assert not (source.parent / "bundle").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_act": "tanh"}, "activation 'tanh' is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "64 hidden numbers cannot be shared by 5 heads"),
        ({"hidden_size": 48}, "embeddings.weight has shape"),
        ({"num_hidden_layers": 1}, "which bert does not use"),
        ({"vocab_size": 10}, "gives token id"),
        ({"hidden_size": "x"}, "hidden_size must be an integer"),
        ({"quantization_config": {"bits": 4}}, "quant_method '' is not supported"),
    ],
)
def test_configs(source: Path, values: dict[str, object], message: str) -> None:
    change(source / "config.json", **values)
    with pytest.raises(CompileError, match=message):
        build(source)


def test_files_beside_the_checkpoint(source: Path) -> None:
    write_pooling(source, "cls_token", normalize=False, max_tokens=40, query="Find: ", document="")
    manifest = build(source)
    spec = manifest.pooling
    assert spec is not None
    assert (spec.kind, spec.normalise, spec.prompts) == (PoolingKind.CLS, False, {"query": "Find: ", "document": ""})
    assert (spec.begin_ids, spec.end_ids) == ((2,), (3,)), "not what the file's own padding adds"
    assert manifest.max_context == 40
    assert [graph.rows for graph in manifest.graphs] == [32, 128, 512]
    assert manifest.text.stop_ids == ()


def test_empty_prompts_of_a_file_leave_those_of_the_family(tmp_path: Path) -> None:
    """As sentence-transformers saves a model whose prompts nobody has set."""
    write_encoder(tmp_path / "nomic", "NomicBert")
    write_pooling(tmp_path / "nomic", "mean_tokens", query="", document="doc: ", other="")
    spec = build(tmp_path / "nomic").pooling
    assert spec is not None
    assert spec.prompts == {
        "query": "search_query: ",
        "document": "doc: ",
        "classification": "classification: ",
        "clustering": "clustering: ",
        "other": "",
    }


def test_without_such_files(source: Path) -> None:
    manifest = build(source, max_context=50)
    spec = manifest.pooling
    assert spec is not None
    assert (spec.kind, spec.normalise, spec.prompts) == (PoolingKind.MEAN, True, {})
    assert manifest.max_context == 50
    assert manifest.task is ModelTask.EMBED


def test_the_longest_text_fits_the_largest_pass(source: Path) -> None:
    assert build(source, rows=(8, 24)).max_context == 24


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling must be one of"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "it is none"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling 'weightedmean' is not supported"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is not supported"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "max_seq_length must be an integer"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "'x' is none of its prompts"),
        ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "prompts.a must be a string"),
    ],
)
def test_damaged_files_beside_the_checkpoint(source: Path, file: str, values: dict[str, object], message: str) -> None:
    write_pooling(source, "mean_tokens")
    change(source / file, **values)
    with pytest.raises(CompileError, match=message):
        build(source)


def test_families_of_a_decoders_layers(tmp_path: Path) -> None:
    """What families of a decoder's layers refuse."""
    for family, changes, options, message in (
        ("Gemma3Text", {}, {}, "use_bidirectional_attention only"),
        ("ModernBert", {"norm_bias": True}, {}, "norm_bias is not supported"),
        ("ModernBert", {}, {"target": Target.X_ELITE, "quant": Quant.FP16}, "not supported for --target x-elite"),
    ):
        folder = tmp_path / message[:9].replace(" ", "_")
        write_encoder(folder, family, **({"pad_token_id": 0} | changes))
        with pytest.raises(CompileError, match=message):
            build(folder, **options)


def test_other_modules_are_refused(source: Path) -> None:
    write_pooling(source, "mean_tokens")
    modules = json.loads((source / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_LSTM", "type": "sentence_transformers.models.LSTM"})
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CompileError, match="module 'LSTM' is not supported"):
        build(source)


def test_a_head_of_two_labels_is_no_score(tmp_path: Path) -> None:
    write_encoder(tmp_path / "two", "Bert", "ForSequenceClassification")
    with pytest.raises(CompileError, match="a head of 2 labels is not supported"):
        build(tmp_path / "two")


def test_names_with_the_prefix_of_a_model_with_a_head(source: Path) -> None:
    """Checkpoints that were cut out of a larger model keep it; old ones have the numbers of positions as a tensor."""
    tensors = load_file(source / "model.safetensors") | {"embeddings.position_ids": np.arange(96)[None]}
    renamed = {f"bert.{name}": value for name, value in tensors.items()}
    save_file(renamed, source / "model.safetensors", metadata={"format": "pt"})
    assert build(source).parity["cosine"] > 0.9999


def test_methods_unless_told_otherwise(source: Path) -> None:
    """Floats as long as they are small; an NPU computes in half precision."""
    assert default_quant(Target.CPU, source) is Quant.FP32
    assert default_quant(Target.X_ELITE, source) is Quant.FP16
    with (source / "more.safetensors").open("wb") as file:
        file.truncate(LARGEST_IN_FLOAT)
    assert default_quant(Target.CPU, source) is Quant.INT8


@pytest.mark.parametrize(("quant", "least"), [(Quant.FP32, 0.999999), (Quant.INT8, 0.998), (Quant.INT4, 0.95)])
@pytest.mark.parametrize("family", ["Bert", "NomicBert"])
def test_what_a_method_loses_is_told(family: str, quant: Quant, least: float, tmp_path: Path) -> None:
    """Of several texts in one pass, the least cosine."""
    write_encoder(tmp_path / "tiny", family)
    parity = build(tmp_path / "tiny", quant=quant).parity
    assert parity["texts"] == 4
    assert least < parity["cosine"] <= 1


def test_a_float_bundle_that_differs_is_no_bundle(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were rows to see only what is before them, the check at the end would find it."""
    monkeypatch.setattr(PackedSegment, "visible_rows", lambda segment: np.tri(segment.count, dtype=bool))
    with pytest.raises(CompileError, match="the compiled graphs differ from the checkpoint"):
        build(source)
    assert not (source.parent / "bundle").exists()
