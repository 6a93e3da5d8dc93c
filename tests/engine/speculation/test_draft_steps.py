"""Steps of a draft model, by hand."""

import json
from pathlib import Path

import msgspec
import pytest

from engine.errors import BundleError
from engine.speculation.draft_steps import check_same_tokens, in_parts
from tests.engine.worker.segmented_runtime import smallest_manifest


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ([], []),
        ([8], [slice(0, 1)]),
        ([3, 5, 1], [slice(0, 2), slice(2, 3)]),
        ([3, 6, 2, 1], [slice(0, 1), slice(1, 3), slice(3, 4)]),
        ([9, 1], [slice(0, 1), slice(1, 2)]),
    ],
)
def test_sequences_share_steps_in_their_order(counts: list[int], parts: list[slice]) -> None:
    """Eight rows in a step; one that wants more is alone."""
    assert in_parts(counts, 8) == parts


@pytest.mark.parametrize("hashes", [{}, {"tokenizer.json": "1"}])
def test_a_draft_with_other_tokens_is_refused_by_the_first(tmp_path: Path, hashes: dict[str, str]) -> None:
    """Tokens that a unigram model lists in their order are those of a mapping; hashes that differ say nothing yet."""
    served = msgspec.structs.replace(smallest_manifest(), files=hashes)
    draft = msgspec.structs.replace(smallest_manifest(), name="small", files={})
    for name, vocab in (("served", {"a": 0, "b": 1}), ("same", [["a", 0.0], ["b", 0.0]]), ("other", {"a": 0, "c": 1})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}), encoding="utf-8")
    check_same_tokens(tmp_path / "served", served, tmp_path / "same", draft)
    with pytest.raises(BundleError, match="draft: small has other tokens than none: 1 is 'c' there and 'b' here"):
        check_same_tokens(tmp_path / "served", served, tmp_path / "other", draft)
