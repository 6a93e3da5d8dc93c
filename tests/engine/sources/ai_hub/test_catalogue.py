"""Where a bundle lies, from a stand-in for Qualcomm's catalogue."""

import sys
from collections.abc import Callable

import pytest

from engine.sources.ai_hub import chipset_of, find_bundle
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


@pytest.mark.parametrize(
    ("chip", "chipset"),
    [
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", "qualcomm-snapdragon-x-elite"),
        ("Snapdragon(R) X Plus - X1P42100 - Qualcomm(R) Oryon(TM) CPU", "qualcomm-snapdragon-x-elite"),
        ("Snapdragon(R) X2 Elite - X2E88100 - Qualcomm(R) Oryon(TM) CPU", "qualcomm-snapdragon-x2-elite"),
        ("qcom,glymur-crd qcom,glymur", "qualcomm-snapdragon-x2-elite"),
        ("AMD EPYC", "qualcomm-snapdragon-x-elite"),
    ],
)
def test_the_chipset_of_this_machine(chip: str, chipset: str) -> None:
    assert chipset_of(chip) == chipset


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sources.ai_hub.PACKAGE", "not_installed_anywhere")
    with pytest.raises(FetchFailed, match=r'-m pip install "hexserve\[hub\]"'):
        find_bundle("qwen3_4b")
