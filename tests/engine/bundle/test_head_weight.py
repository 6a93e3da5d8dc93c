"""The file of a head's weights is the one the graphs take, of the size they take, or the bundle is refused."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import FileEntry, GraphKind, Manifest, load_manifest, save_manifest
from engine.bundle.weight_files import read_head_weight
from engine.errors import BundleError
from tests.bundles import Bundles
from tests.head_weight import with_weight_input


@pytest.fixture(scope="module")
def folder(bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("head") / "bundle"
    with_weight_input(bundles("fixed"), made)
    return made


def test_it_is_read_in_the_shape_of_the_input(folder: Path) -> None:
    manifest = load_manifest(folder)
    check_contract(manifest)
    weight = read_head_weight(folder, manifest)
    assert weight is not None
    assert (weight.shape, weight.dtype) == ((manifest.model.vocab, manifest.model.hidden), np.float32)
    assert weight.flags.c_contiguous


def test_most_bundles_have_none(bundles: Bundles) -> None:
    assert read_head_weight(bundles("free"), load_manifest(bundles("free"))) is None


def turned(manifest: Manifest, **values: Any) -> Manifest:
    """The manifest with the weights of the first head changed."""
    graphs = list(manifest.graphs)
    place = next(index for index, graph in enumerate(graphs) if graph.kind is GraphKind.LMHEAD)
    *others, weight = graphs[place].inputs
    graphs[place] = msgspec.structs.replace(graphs[place], inputs=(*others, msgspec.structs.replace(weight, **values)))
    return msgspec.structs.replace(manifest, graphs=tuple(graphs))


def test_what_does_not_fit(folder: Path, bundles: Bundles) -> None:
    manifest = load_manifest(folder)
    vocab, hidden = manifest.model.vocab, manifest.model.hidden
    other = {**manifest.files, "lm_head.raw": FileEntry(12, "")}
    plain = load_manifest(bundles("fixed"))
    cases = {
        "head_weight names no file": msgspec.structs.replace(manifest, head_weight=""),
        "does not list it among": msgspec.structs.replace(manifest, head_weight="other.raw"),
        "lm_head.raw has 12 bytes": msgspec.structs.replace(manifest, files=other),
        "but no graph takes the LM head's": msgspec.structs.replace(plain, head_weight="lm_head.raw"),
        r"in several forms: .*float16": turned(manifest, dtype="float16"),
        rf"as float32 \[{vocab}, 7\]": turned(manifest, shape=(vocab, 7)),
        rf"as float32 \[7, {hidden}\]": turned(manifest, shape=(7, hidden)),
        r"as float32 \['rows', ": turned(manifest, shape=("rows", hidden)),
        r"as int4 \[": turned(manifest, dtype="int4"),
    }
    for message, wrong in cases.items():
        with pytest.raises(BundleError, match=message):
            check_contract(wrong)


def test_a_file_outside_the_folder(folder: Path, tmp_path: Path) -> None:
    save_manifest(tmp_path, msgspec.structs.replace(load_manifest(folder), files={}, head_weight="../lm_head.raw"))
    with pytest.raises(BundleError, match="names a file outside the bundle"):
        load_manifest(tmp_path)


def test_a_file_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    manifest = load_manifest(folder)
    with pytest.raises(BundleError, match=r"lm_head\.raw cannot be read"):
        read_head_weight(tmp_path, manifest)
    (tmp_path / "lm_head.raw").write_bytes(b"short")
    with pytest.raises(BundleError, match=r"lm_head\.raw has 5 bytes, its manifest says"):
        read_head_weight(tmp_path, manifest)
