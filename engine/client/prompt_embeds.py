"""The rows of `prompt_embeds`: read from a client's array, and what a bundle takes."""

import base64
import binascii
from io import BytesIO
from tokenize import TokenError

import numpy as np
from numpy.lib import format as npy

from engine.bundle.manifest import Manifest
from engine.bundle.tensors import embedding_width
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.request import PromptEmbeds, Request

MOST_HEAD_BYTES = 1024
READ_HEAD = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # differs in the names of fields alone, which no such file has
}


def decode_embeds(encoded: str, width: int, limit: int, param: str) -> PromptEmbeds:
    """float16 or float32 [tokens, width], finite, as rows for a request; `limit` is the context in tokens.

    Sizes are compared before anything is copied. InvalidRequest or ContextLengthExceeded naming `param`.
    """
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"'{param}' is not base64.", param) from None
    dtype, tokens, found, start = _head(content, param)
    if found != width:
        raise InvalidRequest(f"'{param}' has rows of {found} numbers; this model's embeddings have {width}.", param)
    if not tokens:
        raise InvalidRequest(f"'{param}' is empty: at least one row is needed.", param)
    if tokens >= limit:
        raise ContextLengthExceeded(limit, tokens, 1, param)
    if len(content) - start != tokens * width * dtype.itemsize:
        raise InvalidRequest(
            f"'{param}' has {len(content) - start} bytes of numbers; its head says {tokens * width * dtype.itemsize}.",
            param,
        )
    values = np.frombuffer(content, dtype, offset=start).astype("<f4")
    if not np.isfinite(values).all():
        raise InvalidRequest(f"'{param}' has numbers that are not finite.", param)
    return PromptEmbeds(tokens, values.tobytes())


def _head(content: bytes, param: str) -> tuple["np.dtype[np.floating]", int, int, int]:
    """Type, rows, numbers of a row, and where they begin."""
    stream = BytesIO(content)
    try:
        shape, is_turned, dtype = READ_HEAD[npy.read_magic(stream)](stream, max_header_size=MOST_HEAD_BYTES)
        rows, width = shape
    except (ValueError, KeyError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError):
        dtype = None
    if dtype is None or dtype.str not in ("<f2", "<f4") or is_turned or min(rows, width) < 0:
        raise InvalidRequest(
            f"'{param}' must be a .npy file of float16 or float32 numbers [tokens, hidden], rows one after the other, "
            "as numpy.save writes it.",
            param,
        )
    return dtype, rows, width, stream.tell()


FLOAT_BYTES = 4


def width_for(manifest: Manifest, param: str) -> int:
    """Numbers of one row; InvalidRequest for a bundle whose graphs begin with token ids."""
    width = embedding_width(manifest)
    if width is None:
        raise InvalidRequest(
            f"'{param}': this bundle's graphs take token ids only; it needs an embedding that is a graph of its own.",
            param,
        )
    return width


def check_embeds(manifest: Manifest, request: Request) -> None:
    """InvalidRequest unless there is a row for every token of the prompt, or none at all."""
    if not request.prompt_embeds:
        return
    wanted = len(request.prompt_ids) * width_for(manifest, "prompt_embeds") * FLOAT_BYTES
    if len(request.prompt_embeds) != wanted:
        raise InvalidRequest(f"'prompt_embeds' has {len(request.prompt_embeds)} bytes, {wanted} are expected.")
