"""Whispers whose halves differ: large-v3-turbo and distil models have few layers that write, the former 128 bands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tests.tiny_whisper import END, FRAMES, FREE, NO_TIMES, PROMPT, SIZES, run, tokens_of, write_tokenizer

TOKENS = 20
SHAPES = {
    "large-v3-turbo": {"encoder_layers": 4, "decoder_layers": 1, "num_mel_bins": 128},
    "distil": {"encoder_layers": 4, "decoder_layers": 2, "num_mel_bins": 80},
}


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    nothing: dict[str, Any] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    config = WhisperConfig(**SIZES | SHAPES[name], **nothing, init_std=0.2)
    made = WhisperForConditionalGeneration(config).eval()
    made.save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source")
    compile_bundle(CompileArguments(tmp_path / "source", tmp_path / "bundle", quant=Quant.FP32), SilentProgress())
    loop = assemble(EngineConfig(bundle=str(tmp_path / "bundle"), max_running=2)).loop
    params = SamplingParams(TOKENS, temperature=0.0, stop_token_ids=(END,), speech=FREE)
    heard = np.random.default_rng(1).normal(size=(2, SHAPES[name]["num_mel_bins"], FRAMES)).astype(np.float32)
    for number, each in enumerate(heard):
        loop.add(Request(str(number), PROMPT, params, audio=each.tobytes()), (), 0, 0.0)
    found = {name: tokens_of(events) for name, events in run(loop).items()}
    assert found == {str(number): written(made, torch.tensor(each[None])) for number, each in enumerate(heard)}


def written(model: WhisperForConditionalGeneration, heard: torch.Tensor) -> list[int]:
    """Greedy, from the whole text at each step, without times."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + TOKENS and ids[-1] != END:
        with torch.no_grad():
            logits = model(input_features=heard, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits[:NO_TIMES].argmax()))
    return ids[len(PROMPT) :]
