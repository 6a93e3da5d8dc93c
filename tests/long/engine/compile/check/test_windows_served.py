"""Layers with windows, as served: bounded memory, and the tokens of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import KvType, Layout, Quant
from engine.config import EngineConfig
from engine.runtime.segmented import SegmentRuntime
from engine.worker.assembly import assemble
from tests.engine.compile.check.test_families import GEMMA3N
from tests.engine.compile.check.test_windows_served import TOKENS, WINDOW, answer
from tests.engine.runtime.held import owners

SHARED = {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2, "global_head_dim": 32}
SHARED |= {"num_hidden_layers": 6, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 384}


@pytest.mark.parametrize(
    "family,changes",
    [("Mistral", {}), ("Gemma3", {"num_hidden_layers": 6}), ("Gemma4", SHARED), ("Gemma3n", GEMMA3N)],
    ids=["mistral", "gemma3", "gemma4", "gemma3n"],
)
def test_a_long_answer_holds_a_bounded_number_of_columns(
    family: str,
    changes: dict[str, Any],
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """200 tokens under windows of 16: of all layers (Mistral), of five out of six (Gemma 3), or of every second one,
    the last of which read what others have (Gemma 4 and 3n)."""
    model, source = make_oracle(family, **({"sliding_window": WINDOW, "head_dim": 16, "pad_token_id": 0} | changes))
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS, kv=KvType.FLOAT32)
    served = assemble(EngineConfig(str(folder), threads=1, max_rows=24, kv_slots=4096, spin="off", lookup_rows=2))
    runtime, windows = served.runtime, served.loop.scheduler._pool.windows  # type: ignore[attr-defined]
    assert isinstance(runtime, SegmentRuntime) and windows.window == WINDOW
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)

    def bounded() -> None:
        assert windows.held <= windows.wanted(1000) <= 4
        for cache in owners(runtime._caches):
            assert cache.behind_columns <= 128

    found = answer(served, "a", prompt, bounded)
    assert found == expected[0, len(prompt) :].tolist()
    again = answer(served, "b", prompt)  # its prefix is cached, and so is the window at its end
    assert again == found
    assert served.loop.scheduler.counters.prefix_hits == 32
