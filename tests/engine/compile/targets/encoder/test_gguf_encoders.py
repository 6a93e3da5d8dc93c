"""Encoders from GGUF files, named as llama.cpp's package names their tensors, against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.bundle.specs import PoolingKind
from engine.client.pooling import finished
from engine.compile.arguments import Quant, Target, default_quant
from engine.compile.sources.gguf.vocabulary import TokenKind
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
from tests.tiny_encoder import SPECIALS, write_encoder

F32, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0
KEYS = {"bert": "bert", "xlm-roberta": "bert", "modernbert": "modern-bert", "embedding-gemma": "gemma-embedding"}
ARCHS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
POOLING = gguf.PoolingType


def write_file(
    source: Path,
    config: dict[str, Any],
    case: str,
    pooling: gguf.PoolingType = POOLING.MEAN,
    kind: GGMLQuantizationType = F32,
    change: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    """A checkpoint's folder as the converter writes it. kind: of the layers' matrices."""
    path = source.parent / f"{case}-{kind.name}.gguf"
    writer = gguf.GGUFWriter(path, KEYS[case])
    writer.add_context_length(config["max_position_embeddings"] - (2 if case == "xlm-roberta" else 0))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_pooling_type(pooling)
    writer.add_causal_attention(False)
    if case == "embedding-gemma":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(1_000_000.0)
        writer.add_sliding_window(config["sliding_window"])
    elif case == "modernbert":
        writer.add_layer_norm_eps(config["norm_eps"])
        writer.add_rope_freq_base(160_000.0)
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(3)
    else:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    add_vocabulary(writer, source)
    names = gguf.get_tensor_name_map(ARCHS[KEYS[case]], config["num_hidden_layers"])
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.startswith("pooler."):
            continue
        value = tensor.numpy()
        if case == "xlm-roberta" and "position_embeddings" in name:
            value = value[2:]
        if case == "embedding-gemma" and "norm" in name:
            value = value + np.float32(1)
        full = f"model.{name}" if case == "embedding-gemma" else name
        written = names.get_name(full, try_suffixes=(".weight", ".bias"))
        assert written is not None, name
        stored = kind if written.startswith("blk.") and value.ndim == 2 else F32
        writer.add_tensor(written, gguf.quantize(value, stored), raw_dtype=stored)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter, source: Path) -> None:
    """WordPiece, whose words the file marks."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    marked = [
        token if token in SPECIALS else token[2:] if token.startswith("##") else f"\u2581{token}" for token in tokens
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(marked)
    writer.add_token_types([int(TokenKind.CONTROL if token in SPECIALS else TokenKind.NORMAL) for token in tokens])
    writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
    writer.add_sep_token_id(3)
    writer.add_unk_token_id(1)


def written(case: str, folder: Path) -> Any:
    """Gemma's files do not say what scores are divided by: it is the head's size."""
    family, changes = CASES[case]
    scale = {"query_pre_attn_scalar": 16} if case == "embedding-gemma" else {}
    return write_encoder(folder / "source", family, **(changes | scale))


def vectors(path: Path, texts: list[tuple[int, ...]], quant: Quant) -> np.ndarray:
    manifest = build_encoder(path, path.with_suffix(f".{quant}"), quant=quant)
    spec = pooling_of(manifest)
    assert (spec.begin_ids, spec.end_ids, spec.normalise) == ((2,), (3,), True)
    runtime = EncoderRuntime(path.with_suffix(f".{quant}"), manifest, cpu_provider(1))
    found = runtime.run(pack_texts(texts, 96)).decoded()
    runtime.close()
    return np.array([finished(vector.tobytes(), spec) for vector in found])


@pytest.mark.parametrize("case", KEYS)
def test_vectors_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    """In floats; kept, matrices of 8 bits stay as they are and products round their inputs."""
    model, texts = written(case, tmp_path), texts_of(1, 17, 30, 40)
    config = model.config.to_dict()
    kind, pooling = (PoolingKind.CLS, POOLING.CLS) if case == "xlm-roberta" else (PoolingKind.MEAN, POOLING.MEAN)
    expected = np.array([oracle(model, text, kind) for text in texts])
    path = write_file(tmp_path / "source", config, case, pooling)
    assert default_quant(Target.CPU, path) is Quant.KEEP
    found = vectors(path, texts, Quant.FP32)
    assert np.sum(found * expected, axis=1).min() > 0.999999
    kept = vectors(write_file(tmp_path / "source", config, case, pooling, Q8_0), texts, Quant.KEEP)
    assert 0.99 < np.sum(kept * expected, axis=1).min() < 0.999999


def test_layers_behind_the_pooling(tmp_path: Path) -> None:
    """`dense_2` and `dense_3`, as EmbeddingGemma's files have them."""
    model, texts = written("embedding-gemma", tmp_path), texts_of(9, 20)
    first, second = (torch.randn(*shape, generator=torch.Generator().manual_seed(1)) for shape in ((96, 64), (64, 96)))

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("dense_2.weight", first.numpy())
        writer.add_tensor("dense_3.weight", second.numpy())

    path = write_file(tmp_path / "source", model.config.to_dict(), "embedding-gemma", change=add)
    pooled = np.array([oracle(model, text, PoolingKind.MEAN, length=None) for text in texts])
    expected = pooled @ first.numpy().T @ second.numpy().T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(path, texts, Quant.FP32), expected, atol=2e-5)


def test_a_file_that_scores_is_refused(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "source")
    path = write_file(tmp_path / "source", model.config.to_dict(), "bert", POOLING.RANK)
    with pytest.raises(CompileError, match=r"bert\.pooling_type 4 is not supported"):
        build_encoder(path, tmp_path / "bundle")
