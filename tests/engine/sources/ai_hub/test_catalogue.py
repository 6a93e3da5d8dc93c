"""Where a bundle lies, from a stand-in for Qualcomm's catalogue."""

import sys
from collections.abc import Callable

import pytest

from engine.sources.ai_hub import find_bundle
from engine.sources.names import FetchFailed
from tests.engine.sources.ai_hub.stand_ins import Answer
from tests.engine.sources.file_server import Store


def test_the_second_precision_is_tried(store: Store, catalogue: Callable[[Answer], None]) -> None:
    def answer(precision: str, **_: object) -> str:
        if precision == "w4a16":
            raise sys.modules["qai_hub_models_cli.errors"].AssetNotFoundError("none")
        return store.url

    catalogue(answer)
    assert find_bundle("llama_v3_2_1b") == store.url


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sources.ai_hub.PACKAGE", "not_installed_anywhere")
    with pytest.raises(FetchFailed, match=r'-m pip install "hexserve\[hub\]"'):
        find_bundle("qwen3_4b")
