"""Where a bundle lies, from a stand-in for Qualcomm's catalogue."""

import sys
from collections.abc import Callable

import pytest

from engine.hub.catalogue import PullError, find_bundle
from tests.engine.hub.file_server import Store
from tests.engine.hub.stand_ins import Answer


def test_the_second_precision_is_tried(store: Store, catalogue: Callable[[Answer], None]) -> None:
    def answer(precision: str, **_: object) -> str:
        if precision == "w4a16":
            raise sys.modules["qai_hub_models_cli.errors"].AssetNotFoundError("none")
        return store.url

    catalogue(answer)
    assert find_bundle("llama_v3_2_1b") == store.url


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.hub.catalogue.PACKAGE", "not_installed_anywhere")
    with pytest.raises(PullError, match=r"pip install 'hexserve\[hub\]'"):
        find_bundle("qwen3_4b")
