"""Tiny checkpoints of random weights that embed or rerank, as Qwen3-Embedding and Qwen3-Reranker are: in their files,
their tensor names and the tokens that their tokenizers add. The text side is the demo model's."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, processors

from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder

END = "<|endoftext|>"
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
GEOMETRY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}


def write_embedder(folder: Path) -> Path:
    """A model without a head, what sentence-transformers writes beside it, and a tokenizer that ends every text."""
    tokenizer = Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, end)]
    )
    _save(transformers.Qwen3Model, folder, tokenizer)
    _write(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
    )
    (folder / "1_Pooling").mkdir()
    _write(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": GEOMETRY["hidden_size"],
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_lasttoken": True,
            "include_prompt": True,
        },
    )
    prompts = {"prompts": {"query": QUERY, "document": ""}, "default_prompt_name": None}
    _write(folder / "config_sentence_transformers.json", prompts)
    return folder


def write_reranker(folder: Path) -> Path:
    """A chat model whose tokenizer says yes and no in one token each."""
    tokenizer = Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])
    _save(transformers.Qwen3ForCausalLM, folder, tokenizer)
    shutil.copy(demo_folder() / "tokenizer_config.json", folder)
    return folder


def compiled(name: str, folder: Path) -> Path:
    """A bundle of the `embedder` or the `reranker`, of that name, without rounding."""
    write, task = (write_embedder, ModelTask.EMBED) if name == "embedder" else (write_reranker, ModelTask.RERANK)
    source, bundle = write(folder / f"{name} checkpoint"), folder / f"{name} bundle"
    arguments = CompileArguments(source, bundle, quant=Quant.FP32, task=task, name=name, parity_tokens=16)
    compile_bundle(arguments, SilentProgress())
    return bundle


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer of a checkpoint as transformers reads it."""
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def _save(kind: Any, folder: Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(7)
    config = transformers.Qwen3Config(vocab_size=tokenizer.get_vocab_size(), **GEOMETRY)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "embed" in name:
                parameter.normal_(0, 1)
            else:
                parameter.normal_(0, 1.2 * parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
