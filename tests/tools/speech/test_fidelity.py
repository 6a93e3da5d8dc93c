"""What another Whisper loses over words that were said is what transformers' logits of the same words say."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.check.parity import all_divergences
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.speech.audio_helper import decoded
from engine.speech.log_mel import log_mel
from tests.tiny_whisper import END, FRAMES, MELS, PROMPT, network, write_folder, write_wav
from tools.speech.fidelity import divergence_of
from tools.speech.recordings import ReadAloud

TEXTS = ("bad", "cabdeafed", "aa")


def test_divergence_of_every_token_and_the_end(tmp_path: Path) -> None:
    """A recording that is longer than a window does not count."""
    said = [ReadAloud(tmp_path / f"{text}.wav", text, 0.9) for text in TEXTS]
    long = ReadAloud(tmp_path / "long.wav", "deaf", 1.5)
    for seed, each in enumerate([*said, long]):
        write_wav(each.path, each.seconds, seed)
    source = write_folder(tmp_path / "source")
    other = deepcopy(network())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    changed = write_folder(tmp_path / "changed")
    tensors = {name: value for name, value in other.state_dict().items() if name != "proj_out.weight"}
    save_file(tensors, changed / "model.safetensors", {"format": "pt"})
    bundles = [tmp_path / "floats", tmp_path / "bundle"]
    for folder, bundle in zip((source, changed), bundles, strict=True):
        compile_bundle(CompileArguments(folder, bundle, quant=Quant.FP32), SilentProgress())
    found = divergence_of(bundles[1], bundles[0], [*said, long])
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    kls = [all_divergences(*(logits(each, tokenizer, model) for model in (network(), other))) for each in said]
    assert found.value == pytest.approx(float(np.concatenate(kls).mean()), rel=1e-3)
    assert 0 < found.low <= found.value <= found.high
    assert divergence_of(bundles[0], bundles[0], said).high < 1e-9


def logits(each: ReadAloud, tokenizer: Any, model: Any) -> NDArray[np.float32]:
    """Behind the prompt and every token of what is said."""
    samples = np.frombuffer(decoded(each.path.read_bytes(), 2.0), "<i2").astype(np.float32) / np.float32(32768)
    ids = [*PROMPT, *tokenizer.encode(f" {each.text}", add_special_tokens=False).ids]
    assert len(ids) == len(PROMPT) + len(each.text) and END not in ids
    with torch.no_grad():
        heard = torch.tensor(log_mel(samples, MELS, FRAMES)[None])
        found: NDArray[np.float32] = (
            model(input_features=heard, decoder_input_ids=torch.tensor([ids])).logits[0].numpy()
        )
    return found[len(PROMPT) - 1 :]
