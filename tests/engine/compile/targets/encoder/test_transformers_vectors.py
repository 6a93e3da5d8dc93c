"""The vectors of compiled encoders against transformers, several texts in one pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.bundle.specs import PoolingKind, PoolingSpec
from engine.client.pooling import finished
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.runtime.encoder import EncoderRuntime, pack_texts, pooled
from engine.runtime.sessions import cpu_provider
from tests.tiny_encoder import VOCAB, write_encoder, write_pooling

SPECIALS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
MODERN = SPECIALS | {"num_hidden_layers": 4, "local_attention": 10, "cls_token_id": 2, "sep_token_id": 3}
GEMMA = SPECIALS | {
    "num_hidden_layers": 7,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 12,
    "use_bidirectional_attention": True,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert-tanh": ("Bert", {"hidden_act": "gelu_new"}),
    "bert-relu": ("Bert", {"hidden_act": "relu"}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "roberta": ("Roberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "nomic": ("NomicBert", {}),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases": ("ModernBert", MODERN | {"attention_bias": True, "mlp_bias": True}),
    "embedding-gemma": ("Gemma3Text", GEMMA),
}


def texts_of(*lengths: int) -> list[tuple[int, ...]]:
    draws = np.random.default_rng(3).integers(5, VOCAB, sum(lengths))
    starts = np.cumsum([0, *lengths])
    return [tuple(map(int, draws[start : start + count])) for start, count in zip(starts, lengths, strict=False)]


def oracle(model: Any, text: Sequence[int], kind: PoolingKind, length: float | None = 1.0) -> np.ndarray:
    """The vector of one text alone, in float64, of this length or as it comes."""
    with torch.no_grad():
        hidden = model.double()(input_ids=torch.tensor([text])).last_hidden_state[0].numpy()
    rows = {PoolingKind.MEAN: hidden.mean(axis=0), PoolingKind.CLS: hidden[0], PoolingKind.LAST: hidden[-1]}
    vector = rows[kind]
    return np.asarray(vector if length is None else vector / np.linalg.norm(vector) * length)


def served(folder: Path, manifest: Manifest, texts: Sequence[tuple[int, ...]], rows: int) -> np.ndarray:
    runtime, spec = EncoderRuntime(folder, manifest, cpu_provider(1)), pooling_of(manifest)
    batch = pack_texts(texts, rows)
    hidden = runtime.hidden(batch)
    runtime.close()
    vectors = [pooled(hidden[text.start : text.end], spec.kind) for text in batch.segments]
    return np.array([finished(vector.tobytes(), spec) for vector in vectors])


def pooling_of(manifest: Manifest) -> PoolingSpec:
    assert manifest.pooling is not None
    return manifest.pooling


def build_encoder(source: Path, output: Path, **options: Any) -> Manifest:
    fields = {"quant": Quant.FP32, "rows": (32, 96)} | options
    return compile_bundle(CompileArguments(source, output, **fields), SilentProgress())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_cosine_in_fp32(case: str, mode: str, tmp_path: Path) -> None:
    """One text fills a pass of the fewest rows; then five share one of the most, padding behind them."""
    family, changes = CASES[case]
    model = write_encoder(tmp_path / "source", family, **changes)
    write_pooling(tmp_path / "source", mode)
    manifest = build_encoder(tmp_path / "source", tmp_path / "bundle")
    kind = pooling_of(manifest).kind
    assert kind.value == mode.removesuffix("_tokens").removesuffix("_token").removesuffix("token")
    for rows, texts in ((32, texts_of(32)), (96, texts_of(1, 17, 30, 2, 40))):
        found = served(tmp_path / "bundle", manifest, texts, rows)
        expected = np.array([oracle(model, text, kind) for text in texts])
        assert np.sum(found * expected, axis=1).min() > 0.999999
        np.testing.assert_allclose(found, expected, atol=2e-5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
