"""hexserve.json of a Genie folder."""

import json
from pathlib import Path

import pytest

from engine.errors import BundleError
from engine.genie.extras import GenieExtras, read_extras


def told(folder: Path, value: object) -> GenieExtras:
    (folder / "hexserve.json").write_text(json.dumps(value))
    return read_extras(folder)


def test_what_may_be_told(tmp_path: Path) -> None:
    assert read_extras(tmp_path) == GenieExtras()
    assert told(tmp_path, {}) == told(tmp_path, {"parts": "chained"}) == GenieExtras()
    (tmp_path / "head.raw").touch()
    assert told(tmp_path, {"parts": "apart", "lm_head_weight": "head.raw"}) == GenieExtras(tmp_path / "head.raw", True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"hexserve\.json must hold a JSON object"),
        ({"lm_head": "x"}, "unknown key 'lm_head'"),
        ({"parts": "both"}, "parts must be 'chained' or 'apart', not 'both'"),
        ({"lm_head_weight": 3}, "lm_head_weight must be a string"),
        ({"lm_head_weight": "gone.raw"}, "lm_head_weight: .* has no file 'gone.raw'"),
        ({"lm_head_weight": "../x"}, "lm_head_weight: the name '../x' does not stay inside its folder"),
        ({"lm_head_weight": "/etc/passwd"}, "does not stay inside its folder"),
    ],
)
def test_what_may_not(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        told(tmp_path, value)
