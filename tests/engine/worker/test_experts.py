"""A bundle with experts behind the scheduler: the tokens of transformers, and what its rows chose, counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.worker.assembly import assemble
from tests.engine.compile.conftest import make_oracle
from tests.engine.worker.test_recurrent import add, run
from tests.hybrid import text_of

__all__ = ["make_oracle"]
LAYERS, EXPERTS, CHOSEN, TOKENS = 3, 8, 2, 12
SIZES = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
PROMPTS = {f"r{length}": text_of(length, length) for length in (1, 16, 70)}


@pytest.mark.parametrize("deterministic", [False, True], ids=["free", "one-shape"])
def test_greedy_tokens_and_routing(
    deterministic: bool, make_oracle: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    """The last layer's experts see the rows that need logits alone, or as many as one shape has."""
    model, source = make_oracle("Qwen3Moe", **SIZES)
    arguments = CompileArguments(source, tmp_path / "bundle", quant=Quant.FP32, parity_tokens=8)
    compile_bundle(arguments, SilentProgress())
    config = EngineConfig(str(tmp_path / "bundle"), threads=1, max_rows=37, deterministic=deterministic)
    loop = assemble(config).loop
    before = loop.stats()
    for name, prompt in PROMPTS.items():
        add(loop, name, prompt, TOKENS)
    found = run(loop)
    for name, prompt in PROMPTS.items():
        text = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        assert found[name] == text[0].tolist()[len(prompt) :]
    after = loop.stats()
    chosen, read = after.experts_chosen - before.experts_chosen, after.experts_read - before.experts_read
    steps, rows, logits = after.steps - before.steps, after.rows_run - before.rows_run, len(PROMPTS) * TOKENS
    least = CHOSEN * ((LAYERS - 1) * rows + logits)
    assert least <= chosen <= least + CHOSEN * steps  # a prompt's chunk may ask for logits too
    assert CHOSEN * (LAYERS - 1) * steps <= read <= min(chosen, EXPERTS * LAYERS * steps)
