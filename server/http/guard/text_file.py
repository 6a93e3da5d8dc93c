"""The small text files that people write: settings and API keys."""

import codecs
from pathlib import Path

from engine.files.opening import TEXT_BYTES, read_bytes

ADVICE = "save it as UTF-8 without a byte order mark"
MARKS = (
    (codecs.BOM_UTF8, "it begins with a UTF-8 byte order mark"),
    (codecs.BOM_UTF32_LE, "it is UTF-32"),  # begins like UTF-16, so it is asked first
    (codecs.BOM_UTF32_BE, "it is UTF-32"),
    (codecs.BOM_UTF16_LE, "it is UTF-16"),
    (codecs.BOM_UTF16_BE, "it is UTF-16"),
)


class NotUtf8(ValueError):
    """A text file in another encoding; the message says which one it seems to be."""


def read_text_file(path: Path) -> str:
    """The whole of a UTF-8 file. Raises NotUtf8, or OSError when it cannot be read."""
    content = read_bytes(path, TEXT_BYTES)
    for mark, finding in MARKS:
        if content.startswith(mark):
            raise NotUtf8(f"{finding}; {ADVICE}")
    if b"\0" in content:
        raise NotUtf8(f"it holds zero bytes, as UTF-16 does; {ADVICE}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise NotUtf8(f"it is not UTF-8; {ADVICE}") from None
