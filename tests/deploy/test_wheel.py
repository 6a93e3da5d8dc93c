"""The wheel: what is in it; installed by pip and by uv outside the tree, it serves; what an extra is for, it says."""

import zipfile
from pathlib import Path

import pytest

from tests.deploy.built import build, tracked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_it_has_the_two_packages_with_their_models_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(tracked("server", "engine"))
    for model in ("model", "diffusion_model", "vision_model"):
        assert {
            f"engine/demo/{model}/{file}" for file in ("config.json", "model.safetensors", "tokenizer.json")
        } <= names
