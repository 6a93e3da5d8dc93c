"""export.json: what it says, and how a damaged one is refused."""

from pathlib import Path

import msgspec
import pytest

from engine.compile.graphs.block_export import EXPORT_FILE
from engine.errors import BundleError
from tests.tools.block_loop.test_loop import EXPORT
from tools.block_loop import load_export


def test_the_cache_is_preallocated() -> None:
    export = msgspec.structs.replace(EXPORT, layers=28, batch=2, kv_heads=8, context=2048, head_dim=128)
    assert export.cache_shape == (28, 2, 2, 8, 2048, 128)


def test_input_shapes() -> None:
    export = msgspec.structs.replace(EXPORT, layers=3, mask_layers=3, batch=2)
    assert export.input_shapes() == {
        "input_ids": (2, 4),
        "positions": (2, 4),
        "kv_cache": (3, 2, 2, 1, 16, 2),
        "attention_mask": (3, 2, 1, 4, 20),
        "insert_matrix": (3, 2, 1, 16, 4),
        "keep_mask": (3, 2, 1, 16, 1),
    }


def test_what_was_written_is_read(tmp_path: Path) -> None:
    (tmp_path / EXPORT_FILE).write_bytes(msgspec.json.encode(EXPORT))
    assert load_export(tmp_path) == EXPORT


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "it has no export.json"),
        (b"{", "is damaged"),
        (b"{}", "is damaged"),
        (msgspec.json.encode(msgspec.structs.replace(EXPORT, export_version=9)), "has version 9"),
    ],
)
def test_others_are_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / EXPORT_FILE).write_bytes(content)
    with pytest.raises(BundleError, match=reason):
        load_export(tmp_path)
