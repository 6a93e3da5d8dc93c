"""What such files hold: JSON as a value, and how values and libraries' complaints are put into a sentence."""

import json
from pathlib import Path
from reprlib import Repr
from typing import cast

from engine.files.opening import FileRefused, read_text


class _Brief(Repr):
    """reprlib's, but integers of more digits than Python prints are told by their size."""

    def repr_int(self, x: int, level: int) -> str:
        return f"an integer of {x.bit_length()} bits" if x.bit_length() > 256 else repr(x)


_BRIEF = _Brief()
_BRIEF.maxstring = _BRIEF.maxother = 100


def read_json(path: Path, limit: int) -> object:
    """What a JSON file of at most `limit` bytes holds, all of it Unicode text. FileRefused, or OSError."""
    text = read_text(path, limit).removeprefix("\ufeff")
    try:
        value = json.loads(text)
        if "\\u" in text:  # an escape may be half a surrogate pair, which has no UTF-8 form
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise FileRefused("it holds text that is not Unicode (a lone surrogate)") from None
    except RecursionError:
        raise FileRefused("it is nested too deeply") from None
    except ValueError as error:
        raise FileRefused(f"it is not JSON: {one_line(error)}") from None
    return cast(object, value)


def brief(value: object) -> str:
    """A value of such a file for a sentence: long and deep ones are cut."""
    return _BRIEF.repr(value)


def one_line(error: BaseException) -> str:
    """What a library says of a file, as a part of a sentence."""
    return " ".join(str(error).split())[:300] or type(error).__name__
