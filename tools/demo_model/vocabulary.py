"""The tokenizer and chat template of the demo model."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from engine.demo.location import demo_folder
from tools.demo_model.corpus.conversation import TOOL_CLOSING, TOOL_PREAMBLE, Sample, render
from tools.demo_model.corpus.mixture import draw

VOCABULARY_SIZE = 3072
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)
_CONTROL_TOKENS = SPECIAL_TOKENS[:3]
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    (Path(__file__).parent / "chat_template.jinja")
    .read_text(encoding="utf-8")
    .replace("PREAMBLE", json.dumps(TOOL_PREAMBLE))
    .replace("CLOSING", "'" + TOOL_CLOSING.replace("\n", "\\n") + "'")
)


def train_tokenizer(texts: Iterable[str], size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Train a byte-level BPE tokenizer of `size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special = [AddedToken(token, special=token in _CONTROL_TOKENS, normalized=False) for token in SPECIAL_TOKENS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_vocabulary(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    file = json.loads(tokenizer.to_str())
    for token in file["added_tokens"]:
        # The trainer marks all of its tokens special; tags must survive in the text for those who parse it.
        token["special"] = token["content"] in _CONTROL_TOKENS
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, indent=2), encoding="utf-8")
    settings = json.loads((demo_folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = settings | {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, sample: Sample) -> tuple[list[int], list[bool]]:
    """Return the sample's tokens, and for each whether the model learns to produce it."""
    tokens: list[int] = []
    learned: list[bool] = []
    for span in render(sample):
        ids = tokenizer.encode(span.text, add_special_tokens=False).ids
        tokens.extend(ids)
        learned.extend([span.learned] * len(ids))
    return tokens, learned


def generated_texts(seed: int, documents: int = 30000) -> Iterator[str]:
    """Texts of the demo model's mixture, of which its tokenizer is made."""
    rng = Random(f"vocabulary-{seed}")
    for _ in range(documents):
        yield "".join(span.text for span in render(draw(rng)))
