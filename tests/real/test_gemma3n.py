"""Gemma 3n's text model, as llama.cpp's converter makes a GGUF file of its folder: logits are those of transformers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

from engine.compile.check.parity import bundle_logits
from tests.engine.compile.check.test_families import GEMMA3N
from tests.engine.compile.conftest import GEOMETRY, add_text_files
from tests.real.conftest import fetched
from tests.real.test_projectors import CONVERTING, compiled, with_merges
from tests.vision_models import randomise
from tools.real_models.fetch import RealModels


def test_a_converted_file_gives_the_logits_of_transformers(tmp_path: Path, real_models: RealModels) -> None:
    torch.manual_seed(3)
    model = Gemma3nForCausalLM(Gemma3nTextConfig(**(GEOMETRY | GEMMA3N))).eval()
    randomise(model)
    folder, file = tmp_path / "folder", tmp_path / "model.gguf"
    model.save_pretrained(folder)
    add_text_files(folder)
    with_merges(folder)
    source = fetched(real_models, "llama-cpp")
    asked = ["--outtype", "f32", "--outfile", str(file), str(folder)]
    done = subprocess.run(
        [sys.executable, str(CONVERTING), str(source), *asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    text = list(range(40, 100))
    with torch.no_grad():
        expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
    measured = bundle_logits(*compiled(file, tmp_path / "bundle"), [text], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
