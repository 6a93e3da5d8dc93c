"""Tiny encoders of random weights as transformers saves them, with a WordPiece tokenizer and the files of pooling."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB = 320
GEOMETRY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}


def wordpiece() -> Tokenizer:
    """Letters and pieces of letters; [CLS] and [SEP] come from the post-processor, as do the token types of a pair.

    It cuts and pads, as the files of many sentence-transformers models do.
    """
    letters = [chr(code) for code in range(97, 123)]
    words = ["the", "cat", "dog", "sat", "on", "query", "document", "search", "_", ":", ",", ".", *"0123456789"]
    pieces = [f"##{piece}" for piece in (*letters, "s", "ing", "ed")]
    entries = dict.fromkeys([*SPECIALS, *letters, *words, *pieces])
    vocabulary = {token: index for index, token in enumerate(entries)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    made.add_special_tokens(list(SPECIALS))
    made.enable_truncation(12)
    made.enable_padding(length=12)
    return made


def write_encoder(folder: Path, family: str = "Bert", kind: str = "Model", **changes: object) -> Any:
    """Save a model of transformers with its tokenizer; the model, in float32. changes: of its config."""
    config = getattr(transformers, f"{family}Config")(**(GEOMETRY | changes))
    torch.manual_seed(5)
    made = getattr(transformers, f"{family}{kind}")(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            _randomise(name, parameter)
    made.save_pretrained(folder)
    wordpiece().save(str(folder / "tokenizer.json"))
    return made


def _randomise(name: str, parameter: torch.Tensor) -> None:
    """Values that make every part of the network matter: the library's own start is almost zero."""
    if name.endswith("bias"):
        parameter.normal_(0, 0.3)
    elif "norm" in name.lower():
        parameter.uniform_(0.5, 1.5)
    elif "embed" in name:
        parameter.normal_(0, 1)
    else:
        parameter.normal_(0, 1.2 * parameter.shape[1] ** -0.5)


def write_pooling(folder: Path, mode: str, normalize: bool = True, max_tokens: int = 0, **prompts: str) -> None:
    """The files of sentence-transformers. mode: such as "mean_tokens" or "cls_token"."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalize
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64} | modes))
    if max_tokens:
        values = {"max_seq_length": max_tokens, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(values))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
