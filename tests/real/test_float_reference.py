"""What the float definition says of published files, beside transformers, which makes floats of the same blocks."""

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.compile.calibration.forward import head_logits, reference_hidden
from engine.compile.sources.source import open_source
from engine.models.family import read_network

TEXT = "The keeper counted the crates twice.\n\ndef total(items):\n    return sum(item.price for item in items)\n"
ROWS = 7  # of so many one has its logits compared: they are what takes longest


class QuickReader(gguf.GGUFReader):
    """Elements of a memmap, which the library reads one by one, take several times as long as those of an array."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


@pytest.mark.parametrize(("name", "copies"), [("smollm2", 1), ("qwen_coder", 1), ("gemma", 20)])
def test_logits_are_those_of_transformers(
    request: pytest.FixtureRequest, name: str, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """copies: of the text; those of Gemma are longer than its window."""
    monkeypatch.setattr(gguf, "GGUFReader", cache(QuickReader))  # which transformers opens twice
    path: Path = request.getfixturevalue(name)
    source = open_source(path)
    network = read_network(source.config)
    source.write_text(tmp_path, network.spec.vocab)
    tokens = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXT * copies).ids
    with source.tensors() as tensors:
        hidden = reference_hidden(tensors, network, np.array(tokens))
        found = head_logits(tensors, network, hidden[::-ROWS])
    expected = transformers_logits(path, tokens)
    assert len(tokens) > max(network.spec.layer_windows, default=0)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


def transformers_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """[tokens, vocab] of the last token and each seventh before it, of floats that transformers' own reader makes; its
    loader would want accelerate as well."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    floats = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(floats, strict=False)
    model.tie_weights()
    kept = torch.arange(len(tokens)).flip(0)[::ROWS]
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.tensor([tokens]), logits_to_keep=kept).logits[0].numpy()
    return logits
