"""The text in the tokens of each model, which must be the same ones."""

from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.errors import BundleError
from engine.files.opening import FileRefused, read_text, shown
from engine.text.tokenizer import Tokenizer

MOST_TEXT_BYTES = 64 * 1024 * 1024
CHARS_PER_TOKEN = 16  # more than any language has; what of a file is tokenised at first


class TokenVocabulary:
    """How a model reads text. size: ids in its logits. bos: what every window begins with, () where it wants none."""

    def __init__(self, folder: Path, spec: TextSpec, size: int) -> None:
        self.size = size
        self._tokenizer = Tokenizer.load(folder, spec)
        self.bos = self._tokenizer.with_bos(())

    def tokens(self, text: str, most: int) -> tuple[int, ...]:
        """The first `most` tokens of a text, 0 = all. Special tokens that are written out count as such."""
        if most:
            found = self._tokenizer.encode(text[: most * CHARS_PER_TOKEN], allow_special=True)
            if len(found) > most:
                return found[:most]
        found = self._tokenizer.encode(text, allow_special=True)
        return found[:most] if most else found


def evaluated_text(file: Path) -> str:
    """The whole text; BundleError when it cannot be read or is not UTF-8."""
    try:
        return read_text(file, MOST_TEXT_BYTES)
    except FileRefused as error:
        raise BundleError(f"--text {file} cannot be used: {error}") from None
    except OSError as error:
        raise BundleError(f"--text {file} cannot be read: {shown(error)}") from None
