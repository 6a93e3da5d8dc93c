"""Block diffusion on the NPU's graphs: a tiny SDAR compiled for Snapdragon X Elite, run in the HTP emulator."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.request import Denoising, Request, SamplingParams, Unmasking
from engine.runtime.interface import Logits, PackedBatch
from engine.runtime.qnn.provider import EMULATOR
from engine.worker.assembly import Assembled, assemble
from tests.engine.core.blocks_by_hand import denoise
from tests.engine.core.eager_blocks import EagerBlocks, write_sdar

MASK = 300
FOUR = Denoising(4, MASK, 4)
RULES = {
    "dynamic": replace(FOUR, confidence_threshold=0.03),
    "static": replace(FOUR, steps=2, unmasking=Unmasking.STATIC_CONFIDENCE),
    "sequential": replace(FOUR, unmasking=Unmasking.SEQUENTIAL),
    "entropy": replace(FOUR, unmasking=Unmasking.ENTROPY_BOUND, entropy_bound=11.0),
}
PROMPT = tuple((index * 29 + 3) % 256 for index in range(22))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sdar(tmp_path_factory.mktemp("sdar") / "tiny", 4, MASK)


@pytest.fixture(scope="module")
def engine(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembled]:
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("npu") / "tiny"
    arguments = CompileArguments(
        source,
        folder,
        target=Target.X_ELITE,
        quant=Quant.FP16,
        rows=(1, 16),
        context=(128,),
        share_weights=False,
        parity_tokens=8,
    )
    compile_bundle(arguments, SilentProgress())
    assembled = assemble(EngineConfig(bundle=str(folder)))
    yield assembled
    assembled.runtime.close()
    assembled.loop.close()


@pytest.mark.parametrize("rule", RULES)
def test_tokens_and_logits_are_those_of_the_eager_network(
    engine: Assembled, source: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.ready.device == EMULATOR
    assert engine.ready.variants == (str(StepShape(16, 112)),)  # one row is less than a block
    eager = EagerBlocks.load(source)
    expected = denoise(eager, PROMPT, RULES[rule], 14).tokens
    run, seen = engine.runtime.run, list[tuple[PackedBatch, np.ndarray]]()

    def noting(batch: PackedBatch) -> Logits:
        logits = run(batch)
        seen.append((batch, logits.decoded().copy()))
        return logits

    monkeypatch.setattr(engine.runtime, "run", noting)
    params = SamplingParams(max_tokens=14, temperature=0.0, denoising=RULES[rule])
    engine.loop.add(Request(rule, PROMPT, params), (), 7, 0.0)
    found = [
        token
        for _ in iter(lambda: engine.loop.scheduler.has_work, False)
        for e in engine.loop.step().events
        for token in e.token_ids
    ]
    for batch, logits in seen:
        start = batch.starts[0]
        rows = [*[*PROMPT, *found][: int(batch.positions[start])], *batch.input_ids[start:].tolist()]
        wanted = eager(rows, batch.positions[batch.logit_rows].tolist())
        assert np.abs(logits - wanted).max(initial=0.0) < 0.02 * np.abs(wanted).max(initial=1.0)
    assert found == expected
