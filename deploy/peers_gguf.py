"""A Qwen3 checkpoint as GGUF Q4_0, for llama-server: `python deploy/peers_gguf.py HF_FOLDER OUTPUT`.

Needs the `gguf` package of the llama.cpp tree on PYTHONPATH. Every matrix becomes Q4_0, the tied embedding and LM head
included, as they are int4 in our bundle; norms stay float32.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401 (teaches numpy bfloat16)
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tokenizers import Tokenizer

NORMAL, CONTROL = 1, 3
ANY_MERGE = "a b"  # a vocabulary without one is refused; prompts come as token ids, so it is never used


def main(source: Path, output: Path) -> int:
    """Write the file whole or not at all."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    draft = output.with_suffix(".draft")
    writer = gguf.GGUFWriter(draft, "qwen3")
    add_sizes(writer, config)
    add_vocabulary(writer, Tokenizer.from_file(str(source / "tokenizer.json")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, value in tensors(source):
        kind = gguf.GGMLQuantizationType.Q4_0 if value.ndim > 1 else gguf.GGMLQuantizationType.F32
        written = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(written, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(output)
    return 0


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The shape of the network."""
    writer.add_name("random")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Every token with its spelling, so that answers stream text."""
    special = {identifier for identifier, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokenizer.id_to_token(identifier) or f"<unused{identifier}>" for identifier in range(size)])
    writer.add_token_types([CONTROL if identifier in special else NORMAL for identifier in range(size)])
    writer.add_token_merges([ANY_MERGE])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def tensors(source: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Names and values of all shards as float32, one at a time."""
    for shard in sorted(source.glob("*.safetensors")):
        with safe_open(shard, "numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                yield name, opened.get_tensor(name).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
