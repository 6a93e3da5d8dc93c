"""The file of cache scales: its size follows from the model, and a code must stand for something."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle import weight_files as float_file
from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import MANIFEST_FILE, Manifest, describe_file, load_manifest
from engine.bundle.weight_files import KV_SCALES, read_kv_scales, write_floats
from engine.errors import BundleError
from tests.bundles import Bundles

LAYOUT = "segments int8 caches"


@pytest.fixture
def folder(bundles: Bundles, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles(LAYOUT), tmp_path / "bundle"))


def rewritten(folder: Path, content: bytes) -> Manifest:
    """The bundle with another file of scales, which its manifest knows."""
    (folder / KV_SCALES).write_bytes(content)
    manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
    files = manifest.files | {KV_SCALES: describe_file(folder / KV_SCALES)}
    (folder / MANIFEST_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    return load_manifest(folder)


def test_what_is_read_is_what_was_written(folder: Path) -> None:
    manifest = load_manifest(folder)
    assert (manifest.kv_dtype, manifest.kv_scales) == ("int8", KV_SCALES) and KV_SCALES in manifest.files
    scales = np.arange(1, 129, dtype=np.float32).reshape(2, 2, 2, 16)
    write_floats(folder / KV_SCALES, scales)
    assert (read_kv_scales(folder, load_manifest(folder)) == scales).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0.0, -0.1, 1e-40, 1e31])
def test_a_scale_that_is_no_scale(folder: Path, number: float) -> None:
    scales = np.ones(128, np.float32)
    scales[77] = number
    with pytest.raises(BundleError, match=r"kv_scales\.f32 has a scale of .*; it must be from 1e-30 to 1e\+30"):
        read_kv_scales(folder, rewritten(folder, scales.tobytes()))


@pytest.mark.parametrize("size", [0, 511, 513, 4096])
def test_another_size_is_refused_before_it_is_read(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = rewritten(folder, bytes(size))
    monkeypatch.delattr(float_file, "read_bytes")
    for check in (check_contract, lambda found: read_kv_scales(folder, found)):
        with pytest.raises(BundleError, match=f"has {size} bytes, the model's cache scales take 512"):
            check(manifest)


def test_a_file_that_is_gone_or_was_cut_since(folder: Path) -> None:
    manifest = load_manifest(folder)
    (folder / KV_SCALES).write_bytes(bytes(4))
    with pytest.raises(BundleError, match="has 4 bytes, its manifest says 512"):
        read_kv_scales(folder, manifest)
    (folder / KV_SCALES).unlink()
    with pytest.raises(BundleError, match=r"kv_scales\.f32 cannot be read"):
        read_kv_scales(folder, manifest)


def test_what_the_manifest_may_not_say(bundles: Bundles) -> None:
    manifest, floats, pool = (load_manifest(bundles(layout)) for layout in (LAYOUT, "segments", "free"))
    replace = msgspec.structs.replace
    others = {name: entry for name, entry in manifest.files.items() if name != KV_SCALES}
    for wrong, message in (
        (replace(manifest, kv_scales=""), "caches of int8 need kv_scales"),
        (replace(floats, kv_scales=KV_SCALES), "caches of float32 have no kv_scales"),
        (replace(pool, kv_scales=KV_SCALES), "kv_scales are for the caches of a segmented bundle"),
        (replace(manifest, files=others), "uses kv_scales.f32, but does not list it"),
    ):
        with pytest.raises(BundleError, match=message):
            check_contract(wrong)
    with pytest.raises(BundleError, match=r"uses kv_scales\.f32, but does not list it"):
        check_listed(replace(manifest, files=others))


def test_a_file_outside_the_bundle(folder: Path) -> None:
    text = (
        (folder / MANIFEST_FILE).read_text().replace('"kv_scales": "kv_scales.f32"', '"kv_scales": "../kv_scales.f32"')
    )
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(BundleError, match="names a file outside the bundle"):
        load_manifest(folder)


def test_graphs_of_the_other_caches(bundles: Bundles) -> None:
    manifest = load_manifest(bundles(LAYOUT))
    check_contract(manifest)
    graphs = tuple(graph for graph in manifest.graphs if graph.name != "attention_chunk")
    with pytest.raises(
        BundleError, match=r"attention and attention_chunk; this one has attention, attention_base, attention_masked$"
    ):
        check_contract(msgspec.structs.replace(manifest, graphs=graphs))
    with pytest.raises(BundleError, match="by caches of float32 attention; this one has"):
        check_contract(msgspec.structs.replace(manifest, kv_dtype="float32", kv_scales=""))
