"""What a client is served of published files, against their own floats, beside llama.cpp on the same tokens."""

import pytest
from rich.console import Console

from tools.fidelity.__main__ import BAR, MADE, measured
from tools.llama_cpp.__main__ import MODELS
from tools.llama_cpp.fidelity import PUBLISHED
from tools.real_models.fetch import RealModels


@pytest.mark.parametrize("name", MODELS)
def test_published_files_lose_no_more_than_the_bar(name: str, real_models: RealModels) -> None:
    """On 8,192 tokens, of which the second half of each window is scored."""
    (found,) = measured(real_models, [name], (PUBLISHED,), Console(quiet=True), is_half=True)
    assert found.ours.quality.tokens == 16 * 255
    assert found.ratio <= BAR


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_the_bar_holds_on_all_windows(name: str, real_models: RealModels) -> None:
    (found,) = measured(real_models, [name], (PUBLISHED,), Console(quiet=True))
    assert found.ours.quality.tokens >= 8000
    assert found.ratio <= BAR


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_files_that_llama_quantize_makes_lose_no_more(name: str, real_models: RealModels) -> None:
    lost = {each.theirs.kind: each.ratio for each in measured(real_models, [name], MADE, Console(quiet=True))}
    assert {kind: ratio for kind, ratio in lost.items() if ratio > BAR} == {}
