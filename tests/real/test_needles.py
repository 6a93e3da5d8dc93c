"""Facts hidden in longer texts than windows and original contexts reach, found by published models."""

from pathlib import Path

import httpx

from engine.compile.arguments import CompileArguments, KvType, Target, default_quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.live import serving
from tools.needles import BEGINNING, QUESTION, asking, needles
from tools.yarn_gguf import write_yarn

DEPTHS = (0.0, 0.6)


def missed(file: Path, folder: Path, tokens: int, goes_on: bool) -> list[str]:
    """What was answered instead. folder: gets the bundle."""
    bundle = folder / "bundle"
    quant = default_quant(Target.CPU, file)
    compile_bundle(CompileArguments(file, bundle, quant=quant, kv=KvType.FLOAT32, parity_tokens=2), SilentProgress())
    with (
        serving(str(bundle), "--max-context", str(tokens), cache=folder) as server,
        httpx.Client(base_url=server.url, timeout=None) as client,
    ):
        model = client.get("/v1/models").json()["data"][0]["id"]
        question = BEGINNING if goes_on else QUESTION
        found = list(needles(asking(client, model, goes_on), tokens, DEPTHS, question))
    assert len(found) == len(DEPTHS) and all(one.prompt_tokens > tokens * 0.9 for one in found)
    return [one.answer for one in found if not one.is_found]


def test_behind_three_windows(gemma: Path, tmp_path: Path) -> None:
    """Of 512 tokens, which most layers of Gemma 3 270M see; it was not taught to chat."""
    assert missed(gemma, tmp_path, 1700, goes_on=True) == []


def test_behind_the_original_context(qwen_coder: Path, tmp_path: Path) -> None:
    """YaRN from 512 tokens on, four times as far, of which half is read."""
    write_yarn(qwen_coder, longer := tmp_path / "longer.gguf", 4.0, original=512)
    assert missed(longer, tmp_path, 1024, goes_on=False) == []
