"""Which models a folder holds."""

import shutil
from pathlib import Path

import pytest

from engine.errors import BundleError
from engine.sources.resolve import ListedModel, models_in
from tests.bundles import Bundles


def test_what_can_be_served_is_listed_and_the_rest_is_left_alone(bundles: Bundles, tmp_path: Path) -> None:
    bundle = tmp_path / "b-bundle"
    shutil.copytree(bundles("free"), bundle)
    shutil.copytree(bundles("free"), tmp_path / "b-bundle.partial-17")
    (tmp_path / "a-checkpoint").mkdir()
    (tmp_path / "a-checkpoint" / "config.json").write_text("{}")
    (tmp_path / "c-genie").mkdir()
    (tmp_path / "c-genie" / "genie_config.json").write_text("{}")
    (tmp_path / "d.model.GGUF").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "f.gguf").mkdir()
    found, problems = models_in(tmp_path)
    assert found == [
        ListedModel("a-checkpoint", tmp_path / "a-checkpoint", is_bundle=False),
        ListedModel(found[1].name, bundle, is_bundle=True),
        ListedModel("c-genie", tmp_path / "c-genie", is_bundle=False),
        ListedModel("d.model", tmp_path / "d.model.GGUF", is_bundle=False),
    ]
    assert found[1].name != "b-bundle", "a bundle says its own name"
    assert problems == []


def test_a_damaged_bundle_is_told_and_the_others_are_listed(bundles: Bundles, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    shutil.copytree(bundles("free"), tmp_path / "good")
    (tmp_path / "loop").symlink_to("loop")
    found, problems = models_in(tmp_path)
    assert [model.path.name for model in found] == ["good"]
    assert len(problems) == 2 and problems[0].startswith(f"{tmp_path / 'damaged'} is not served: ")
    assert problems[1] == f"{tmp_path / 'loop'} is not served: Too many levels of symbolic links"


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"models_dir .*nowhere cannot be read"):
        models_in(tmp_path / "nowhere")


def test_a_model_in_several_gguf_files_is_listed_once(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    assert models_in(tmp_path) == ([ListedModel("big", tmp_path / "big-00001-of-00002.gguf", is_bundle=False)], [])
