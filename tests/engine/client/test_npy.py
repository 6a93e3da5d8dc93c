"""A .npy file in base64: what numpy writes is read, anything else is refused before memory is taken for it."""

import base64
import io
import struct

import numpy as np
import pytest

from engine.client.chat_prompts import decode_embeds
from engine.errors import ContextLengthExceeded, InvalidRequest
from tests.embeds import encoded

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def head(text: bytes, body: bytes = b"", version: bytes = b"\x01\x00") -> str:
    return base64.b64encode(b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + body).decode()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_numpy_saves(dtype: str) -> None:
    found = decode_embeds(encoded(VALUES.astype(dtype)), 4, 100, "prompt_embeds")
    assert (found.tokens, len(found), found.placeholders) == (3, 3, (0, 0, 0))
    assert np.frombuffer(found.data, "<f4").reshape(3, 4).tolist() == VALUES.astype(dtype).astype("f4").tolist()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version(version: tuple[int, int]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, VALUES, version)
    assert decode_embeds(base64.b64encode(stream.getvalue()).decode(), 4, 100, "x").tokens == 3


FORM = "must be a .npy file of float16 or float32 numbers"
GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
BAD: dict[str, tuple[str, str]] = {
    "no base64": ("%%%", "is not base64"),
    "text that is not ASCII": ("é", "is not base64"),
    "nothing": ("", FORM),
    "another file": (base64.b64encode(b"PK\x03\x04" + bytes(100)).decode(), FORM),
    "objects": (encoded(VALUES.astype("O"), allow_pickle=True), FORM),
    "doubles": (encoded(VALUES.astype("f8")), FORM),
    "the other byte order": (encoded(VALUES.astype(">f4")), FORM),
    "integers": (encoded(VALUES.astype("i4")), FORM),
    "columns first": (encoded(np.asfortranarray(VALUES)), FORM),
    "one axis": (encoded(VALUES[0]), FORM),
    "three axes": (encoded(VALUES[None]), FORM),
    "fields": (encoded(np.zeros(2, [("a", "f4"), ("b", "f4")])), FORM),
    "a version of tomorrow": (head(GOOD, VALUES.tobytes(), b"\x09\x00"), FORM),
    "a head of code": (head(b"__import__('os').abort()"), FORM),
    "a head that nests": (head(b"(" * 1000), FORM),
    "a long head": (head(GOOD + b" " * 2000, VALUES.tobytes()), FORM),
    "a head that is cut off": (head(GOOD)[:60], FORM),
    "more rows than memory": (head(GOOD.replace(b"(3, 4)", b"(999999999, 4)")), ""),
    "no rows": (encoded(VALUES[:0]), "is empty: at least one row"),
    "another width": (encoded(VALUES.reshape(4, 3)), "has rows of 3 numbers; this model's embeddings have 4"),
    "too few numbers": (head(GOOD, VALUES.tobytes()[:-1]), "has 47 bytes of numbers; its head says 48"),
    "too many": (head(GOOD, VALUES.tobytes() + b"x"), "has 49 bytes of numbers; its head says 48"),
    "infinity": (encoded(np.full((1, 4), np.inf, np.float32)), "not finite"),
    "no number": (encoded(np.full((1, 4), np.nan, np.float16)), "not finite"),
}


@pytest.mark.parametrize("case", [name for name in BAD if name != "more rows than memory"])
def test_what_is_refused(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(InvalidRequest, match=message) as caught:
        decode_embeds(text, 4, 100, "prompt_embeds")
    assert caught.value.param == "prompt_embeds"


@pytest.mark.parametrize("text", [encoded(np.zeros((100, 4), np.float16)), BAD["more rows than memory"][0]])
def test_more_rows_than_the_context_has(text: str) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        decode_embeds(text, 4, 100, "prompt_embeds")
    assert (caught.value.limit, caught.value.param) == (100, "prompt_embeds")
