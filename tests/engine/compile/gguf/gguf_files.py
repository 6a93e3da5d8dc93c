"""GGUF files made of checkpoints, as llama.cpp's converter makes them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.compile.checkpoint import SafetensorsCheckpoint
from engine.compile.gguf.vocabulary import TokenKind
from tests.engine.compile.gguf.hybrid_files import add_hybrid_facts, hybrid_tensor

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
HYBRID = "qwen35"
MODEL_ARCHS = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    HYBRID: gguf.MODEL_ARCH.QWEN35,
}
LLAMA_3 = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
INTERLEAVED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
Floats = NDArray[np.float32]


def write_gguf(
    source: Path,
    output: Path,
    kind: GGMLQuantizationType | Callable[[str], GGMLQuantizationType] = F32,
    pre: str = "gpt-2",
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    quantize: Callable[[Floats, GGMLQuantizationType], NDArray[np.generic]] = gguf.quantize,
) -> Path:
    """A checkpoint folder as one file. kind: of every matrix, or by its name in the file; vectors stay float32.

    change: adds to the header. quantize: makes bytes of rows.
    """
    config = json.loads((source / "config.json").read_text())
    name = config["architectures"][0].removesuffix("ForCausalLM").removesuffix("Model")
    architecture = name.lower().replace("_", "")
    writer = gguf.GGUFWriter(output, architecture)
    add_facts(writer, config)
    if architecture == HYBRID:
        add_hybrid_facts(writer, config)
    add_text(writer, source, config["vocab_size"], pre)
    names = gguf.get_tensor_name_map(MODEL_ARCHS[architecture], config["num_hidden_layers"])
    tensors = tensors_of(source)
    if architecture == HYBRID:
        tensors = [hybrid_tensor(config, name, value) for name, value in tensors]
    for name, value in tensors:
        # A model without a head leaves out the first part of its names.
        whole = name if name.startswith(("model.", "lm_head.")) else f"model.{name}"
        written = names.get_name(whole, try_suffixes=(".weight", ".bias"))
        assert written is not None
        heads = next((config[count] for module, count in INTERLEAVED.items() if module in name), 0)
        turned = interleaved(value, heads) if architecture == "llama" and heads else value
        stored = F32 if value.ndim == 1 else kind if isinstance(kind, GGMLQuantizationType) else kind(written)
        writer.add_tensor(written, quantize(turned, stored), raw_dtype=stored)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


def interleaved(value: Floats, heads: int) -> Floats:
    """Rows of each head in the order that a rotation of neighbours needs: first of one half, first of the other."""
    halves = value.reshape(heads, 2, len(value) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def add_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Geometry and rotation."""
    writer.add_block_count(config["num_hidden_layers"] + config.get("mtp_num_hidden_layers", 0))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta", 10_000.0))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, config))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def llama3_factors(rope: dict[str, Any], config: dict[str, Any]) -> Floats:
    """What each frequency is divided by, wave by wave as Llama 3's model card says it."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    window, low, high = (rope[key] for key in LLAMA_3)
    factors = []
    for index in range(0, width, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (index / width)
        if wave < window / high:
            factors.append(1.0)
        elif wave > window / low:
            factors.append(rope["factor"])
        else:
            smooth = (window / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_text(writer: gguf.GGUFWriter, source: Path, vocab: int, pre: str) -> None:
    """A byte-level tokenizer.json with its template; what it has no token for is padded."""
    document = json.loads((source / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(document))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    added = {entry["id"]: entry for entry in document["added_tokens"]}
    tokens, kinds = [], []
    for identifier in range(vocab):
        token = tokenizer.id_to_token(identifier)
        kind = TokenKind.NORMAL if token is not None else TokenKind.UNUSED
        if identifier in added:
            kind = TokenKind.CONTROL if added[identifier]["special"] else TokenKind.USER_DEFINED
        tokens.append(token if token is not None else f"[PAD{identifier}]")
        kinds.append(int(kind))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges or ["no merge"])
    for key, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id)):
        if settings.get(key):
            identifier = tokenizer.token_to_id(settings[key])
            assert identifier is not None
            add(identifier)
    writer.add_add_bos_token(bool(settings.get("add_bos_token")))
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def tensors_of(source: Path) -> list[tuple[str, Floats]]:
    """Every tensor of a checkpoint as float32."""
    with SafetensorsCheckpoint(source) as checkpoint:
        return [(name, checkpoint.tensor(name, checkpoint.shape(name))) for name in checkpoint.unused()]
