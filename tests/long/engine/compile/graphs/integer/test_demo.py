"""The embedded model as integer graphs: how good it is, and the real server on it."""

from pathlib import Path

import httpx
import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from tests.live import serving

QUESTION = {"role": "user", "content": "What is the capital of France?"}
# Share of held-out tokens whose likeliest successor is the float model's; mean KL in nats.
BARS = {Quant.W8A16: (0.95, 0.01), Quant.W4A16: (0.80, 0.15)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def compiled(folder: Path, quant: Quant, rows: tuple[int, ...]) -> Manifest:
    arguments = CompileArguments(
        demo_folder(), folder / quant, quant=quant, rows=rows, context=(256,), parity_tokens=400, name="demo"
    )
    return compile_bundle(arguments, SilentProgress())


@pytest.mark.parametrize(("quant", "rows"), [(Quant.W8A16, (1, 8, 32)), (Quant.W4A16, (32,))])
def test_integers_say_what_floats_say(folder: Path, quant: Quant, rows: tuple[int, ...]) -> None:
    parity = compiled(folder, quant, rows).parity
    print(f"{quant}: top-1 {parity['top1']:.4f}, KL {parity['kl']:.5f}, {parity['tokens']:.0f} held-out tokens")
    least_top1, most_kl = BARS[quant]
    assert parity["top1"] >= least_top1
    assert parity["kl"] <= most_kl


def test_the_server_answers_from_integer_graphs(folder: Path) -> None:
    """The worker packs, masks, caches and decodes codes as it does floats."""
    if not (folder / Quant.W8A16).exists():
        compiled(folder, Quant.W8A16, (1, 8, 32))
    with serving("--bundle", str(folder / Quant.W8A16)) as live:
        body = {"model": "demo", "messages": [QUESTION], "temperature": 0, "max_tokens": 24, "logprobs": True}
        answers = [httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=120).json() for _ in range(2)]
    for answer in answers:
        (choice,) = answer["choices"]
        assert "Paris" in choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        # Log probabilities need the true scale of the logits.
        assert choice["logprobs"]["content"][0]["logprob"] > -0.7
