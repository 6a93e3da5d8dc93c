"""Which weights are loaded: by choice, and by the memory there is."""

import msgspec
import pytest

from engine.bundle.manifest import FileEntry, GraphKind, GraphSpec, Manifest
from engine.errors import BundleError
from engine.worker.storage import choose_storage
from tests.engine.worker.segmented_runtime import smallest_manifest

GB = 10**9


def linear(name: str, least_rows: int) -> GraphSpec:
    return GraphSpec(name, f"{name}.onnx", GraphKind.LINEAR, 1, 1, (), (), least_rows=least_rows)


def two_storages() -> Manifest:
    attention = GraphSpec("attention", "attention.onnx", GraphKind.ATTENTION, 1, 1, (), ())
    graphs = (linear("slim", 1), linear("broad", 8), attention)
    files = {"slim.data": FileEntry(GB, ""), "broad.data": FileEntry(2 * GB, "")}
    return msgspec.structs.replace(smallest_manifest(), graphs=graphs, files=files)


@pytest.mark.parametrize(
    ("choice", "memory", "names"),
    [
        ("auto", 6 * GB, ["slim", "broad", "attention"]),
        ("auto", 6 * GB - 1, ["slim", "attention"]),
        ("auto", 0, ["slim", "broad", "attention"]),
        ("both", GB, ["slim", "broad", "attention"]),
        ("narrow", 64 * GB, ["slim", "attention"]),
        ("wide", GB, ["broad", "attention"]),
    ],
)
def test_what_is_loaded(choice: str, memory: int, names: list[str]) -> None:
    storage = choose_storage(two_storages(), choice, memory)
    assert storage is not None and storage.reason
    assert [graph.name for graph in storage.manifest.graphs] == names
    # One storage alone runs passes of any number of rows.
    assert len(names) == 3 or {graph.least_rows for graph in storage.manifest.graphs} == {1}


def test_a_bundle_with_one_storage_has_no_choice() -> None:
    single = msgspec.structs.replace(two_storages(), graphs=(linear("slim", 1),))
    assert choose_storage(single, "auto", GB) is None
    assert choose_storage(single, "narrow", GB) is None
    with pytest.raises(BundleError, match="weights = wide"):
        choose_storage(single, "wide", GB)
