"""Text that nobody tunes on: the beginnings of documents and sources of the pinned llama.cpp tree (MIT licence).

English prose with commands, and every fourth piece is code. Neither calibration nor the training of an embedded model
reads it, and it must stay so: fidelity is measured on it.
"""

from hashlib import sha256
from pathlib import Path

PIECES = (
    *("CONTRIBUTING.md", "docs/multi-gpu.md", "SECURITY.md", "gguf-py/gguf/lazy.py"),
    *("docs/development/HOWTO-add-model.md", "docs/speculative.md", "docs/llguidance.md", "common/ngram-cache.cpp"),
    *("docs/build-profiling.md", "docs/function-calling.md", "docs/android.md", "examples/simple/simple.cpp"),
    *("docs/build.md", "docs/preset.md", "docs/release.md", "gguf-py/gguf/scripts/gguf_set_metadata.py"),
)
PIECE_CHARS = 5_000
SHA256 = "3741a60bb9eeba79bd95dc54fc547ca525fdb9070b606a3cccfe8992d69d3056"


class HeldOutChanged(Exception):
    """The tree has other text than the one that figures were taken on."""


def held_out_text(tree: Path) -> str:
    """The whole text, always the same. tree: llama.cpp's. HeldOutChanged when it is not the pinned one."""
    text = "\n".join(_beginning((tree / name).read_bytes().decode("utf-8")) for name in PIECES)
    found = sha256(text.encode("utf-8")).hexdigest()
    if found != SHA256:
        raise HeldOutChanged(f"the held-out text of {tree} has the SHA-256 {found}, not {SHA256}")
    return text


def _beginning(text: str) -> str:
    """Whole lines, at most PIECE_CHARS of them."""
    return text if len(text) <= PIECE_CHARS else text[: text.rindex("\n", 0, PIECE_CHARS) + 1]
