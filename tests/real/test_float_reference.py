"""What the float definition says of published files, beside transformers, which makes floats of the same blocks."""

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.compile.calibration.forward import reference_logits
from engine.compile.sources.source import open_source
from engine.models.family import read_network

TEXT = "The keeper counted the crates twice.\n\ndef total(items):\n    return sum(item.price for item in items)\n"


@pytest.mark.parametrize(("name", "copies"), [("smollm2", 1), ("qwen_coder", 1), ("gemma", 20)])
def test_logits_are_those_of_transformers(
    request: pytest.FixtureRequest, name: str, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """copies: of the text; those of Gemma are longer than its window."""
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))  # which transformers opens twice
    path: Path = request.getfixturevalue(name)
    source = open_source(path)
    network = read_network(source.config)
    source.write_text(tmp_path, network.spec.vocab)
    tokens = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXT * copies).ids
    with source.tensors() as tensors:
        found = reference_logits(tensors, network, np.array(tokens))
    expected = transformers_logits(path, tokens)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


def transformers_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """[tokens, vocab], of floats that transformers' own reader makes; its loader would want accelerate as well."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"], strict=False)
    model.tie_weights()
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    return logits
