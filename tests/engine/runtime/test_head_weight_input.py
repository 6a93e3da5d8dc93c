"""A head that takes its weights as an input gives the logits of one that holds them; the file is read once."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tests.bundles import Bundles
from tests.head_weight import with_weight_input


def answer(folder: Path) -> list[tuple[int, float]]:
    made = assemble(EngineConfig(bundle=str(folder), deterministic=True))
    (folder / "lm_head.raw").unlink(missing_ok=True)  # it was read
    made.loop.add(Request("a", tuple(range(5, 30)), SamplingParams(12, temperature=0.0, logprobs=0)), (), 1, 0.0)
    found: list[tuple[int, float]] = []
    while made.loop.scheduler.has_work:
        for event in made.loop.step().events:
            found += [(entry.token_id, entry.logprob) for entry in event.logprobs]
    made.loop.close()
    made.runtime.close()
    return found


@pytest.mark.parametrize("layout", ["free", "fixed", "lut"])
def test_the_same_log_probabilities(bundles: Bundles, layout: str, tmp_path: Path) -> None:
    with_weight_input(bundles(layout), tmp_path / "bundle")
    expected, found = answer(bundles(layout)), answer(tmp_path / "bundle")
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-5)
