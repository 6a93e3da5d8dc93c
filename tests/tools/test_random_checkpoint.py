"""The checkpoint of noise is one that transformers can load."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tools.random_checkpoint import main


def test_transformers_loads_it(tmp_path: Path) -> None:
    """All weights are there, none is too many, and the logits are numbers."""
    assert main(["--shape", "tiny", "-o", str(tmp_path / "tiny")]) == 0
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert torch.isfinite(logits).all() and logits.float().std() > 0.1


def test_tokenizer_keeps_any_text(tmp_path: Path) -> None:
    """Bytes in, bytes out; the marks are single tokens."""
    main(["--shape", "tiny", "-o", str(tmp_path / "tiny")])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tiny" / "tokenizer.json"))
    text = "naïve 東京 🙂"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("<|im_start|>").ids) == 1
