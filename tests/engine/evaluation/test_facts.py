"""What a manifest says of a bundle, for a table of several."""

import shutil
from pathlib import Path

import msgspec

from engine.bundle.loss_text import form_text
from engine.bundle.manifest import load_manifest, save_manifest
from engine.bundle.specs import QualitySpec
from tests.bundles import Bundles


def test_the_form_tells_bundles_of_one_checkpoint_apart(bundles: Bundles, tmp_path: Path) -> None:
    fast, good = bundles("segments int4"), shutil.copytree(bundles("segments int4"), tmp_path / "good")
    spec = QualitySpec("good", ("gptq",), 16, 1.0)
    save_manifest(good, msgspec.structs.replace(load_manifest(fast), quality=spec))
    assert [form_text(load_manifest(folder)) for folder in (fast, good)] == ["int4", "int4 good"]
