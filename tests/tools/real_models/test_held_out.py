"""The text that nobody tunes on: the pinned one or none."""

from pathlib import Path

import pytest

from tools.real_models.held_out import PIECE_CHARS, PIECES, HeldOutChanged, held_out_text


def test_a_tree_with_other_documents_is_refused(tmp_path: Path) -> None:
    for name in PIECES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a line\n" * PIECE_CHARS)
    with pytest.raises(HeldOutChanged, match=r"has the SHA-256 [0-9a-f]{64}, not "):
        held_out_text(tmp_path)
