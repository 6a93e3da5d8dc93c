"""A Qwen3 checkpoint as GGUF, for llama.cpp: `python deploy/peers_gguf.py HF_FOLDER OUTPUT [--floats [--respelled]]`.

Needs the `gguf` package of the llama.cpp tree on PYTHONPATH. Every matrix becomes Q4_0, the tied embedding and LM head
included, as they are int4 in our bundle; norms stay float32. With --floats, for llama-quantize, all stay float32 and a
tied head gets weights of its own. With --respelled, special tokens are what `respelled` makes of their spellings: some
of llama.cpp's tools, llama-perplexity among them, read special tokens in a text as plain text.
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

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
ANY_MERGE = "a b"  # a vocabulary without one is refused; prompts come as token ids, so it is never used
PRIVATE_USE = 0xE000  # Unicode's, from where spellings of special tokens are taken
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def main(source: Path, output: Path, floats: bool = False, has_respelled: bool = False) -> int:
    """Write the file whole or not at all."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    draft = output.with_suffix(".draft")
    writer = gguf.GGUFWriter(draft, "qwen3")
    add_sizes(writer, config, floats)
    add_vocabulary(writer, Tokenizer.from_file(str(source / "tokenizer.json")), config, has_respelled)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, value in with_head(tensors(source)) if floats else tensors(source):
        is_rounded = value.ndim > 1 and not floats
        kind = gguf.GGMLQuantizationType.Q4_0 if is_rounded else gguf.GGMLQuantizationType.F32
        written = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(written, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(output)
    return 0


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], floats: bool) -> None:
    """The shape of the network."""
    writer.add_name("peers")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if floats else gguf.LlamaFileType.MOSTLY_Q4_0)
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


def add_vocabulary(
    writer: gguf.GGUFWriter, tokenizer: Tokenizer, config: dict[str, Any], has_respelled: bool = False
) -> None:
    """Every token with its spelling, so that answers stream text."""
    added = tokenizer.get_added_tokens_decoder()
    kinds = {identifier: CONTROL if token.special else USER_DEFINED for identifier, token in added.items()}
    spellings = {identifier: tokenizer.id_to_token(identifier) for identifier in range(config["vocab_size"])}
    if has_respelled:
        other = special_spellings(tokenizer)
        spellings |= other
        kinds |= dict.fromkeys(other, USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([spelling or f"<unused{identifier}>" for identifier, spelling in spellings.items()])
    writer.add_token_types([kinds.get(identifier, NORMAL) for identifier in spellings])
    writer.add_token_merges(merges(tokenizer) or [ANY_MERGE])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def special_spellings(tokenizer: Tokenizer) -> dict[int, str]:
    """A character of Unicode's private use for each special token."""
    added = tokenizer.get_added_tokens_decoder()
    special = sorted(identifier for identifier, token in added.items() if token.special)
    return {identifier: chr(PRIVATE_USE + place) for place, identifier in enumerate(special)}


def respelled(text: str, tokenizer: Tokenizer) -> str:
    """The text with special tokens as a file made with --respelled spells them."""
    added = tokenizer.get_added_tokens_decoder()
    for identifier, spelling in special_spellings(tokenizer).items():
        text = text.replace(added[identifier].content, spelling)
    return text


def merges(tokenizer: Tokenizer) -> list[str]:
    """The merges of a byte-level tokenizer, as GGUF writes them."""
    found = json.loads(tokenizer.to_str())["model"].get("merges", [])
    return [each if isinstance(each, str) else " ".join(each) for each in found]


def with_head(found: Iterator[tuple[str, NDArray[np.float32]]]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The same tensors, and the embedding a second time as the head where there is none."""
    table, has_head = None, False
    for name, value in found:
        table, has_head = value if name == EMBEDDING else table, has_head or name == HEAD
        yield name, value
    if table is not None and not has_head:
        yield HEAD, table


def tensors(source: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Names and values of all shards as float32, one at a time."""
    for shard in sorted(source.glob("*.safetensors")):
        with safe_open(shard, "numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                yield name, opened.get_tensor(name).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), "--floats" in sys.argv[3:], "--respelled" in sys.argv[3:]))
