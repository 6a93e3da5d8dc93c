"""Chats to prompts: templates and images in processes of their own, the rest in a thread. Embeddings: .npy, base64."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import BytesIO
from tokenize import TokenError
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.lib import format as npy

from engine.bundle.manifest import Manifest
from engine.bundle.tensors import embedding_width
from engine.bundle.vision import VisionSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.isolation.helper_pool import HelperLimits
from engine.request import ImagePrompt, PromptEmbeds, Request
from engine.text.prompt import ChatPrompt, PromptMaker
from engine.text.rendering import Rendered, decode, encode_request
from engine.text.template_pool import TemplatePool
from engine.vision.given import images_of, placed_prompt, placed_text, without_pixels
from engine.vision.pool import ImagePool
from engine.vision.question import ImageTiles

MOST_HEAD_BYTES = 1024
READ_HEAD = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
READ_HEAD[3, 0] = npy.read_array_header_2_0  # differs in the names of fields alone, which no such file has
FLOAT_BYTES = 4
T = TypeVar("T")
Chat = Sequence[Mapping[str, Any]]


def decode_embeds(encoded: str, width: int, limit: int, param: str) -> PromptEmbeds:
    """float16 or float32 [tokens, width], finite, as rows for a request; `limit` is the context in tokens. Sizes are
    compared before anything is copied. InvalidRequest or ContextLengthExceeded naming `param`."""
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
    if (size := len(content) - start) != (told := tokens * width * dtype.itemsize):
        raise InvalidRequest(f"'{param}' has {size} bytes of numbers; its head says {told}.", param)
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
        kind = "a .npy file of float16 or float32 numbers [tokens, hidden], rows one after the other"
        raise InvalidRequest(f"'{param}' must be {kind}, as numpy.save writes it.", param)
    return dtype, rows, width, stream.tell()


def width_for(manifest: Manifest, param: str) -> int:
    """Numbers of one row; InvalidRequest for a bundle whose graphs begin with token ids."""
    width = embedding_width(manifest)
    if width is None:
        text = "this bundle's graphs take token ids only; it needs an embedding that is a graph of its own"
        raise InvalidRequest(f"'{param}': {text}.", param)
    return width


def check_embeds(manifest: Manifest, request: Request) -> None:
    """InvalidRequest unless there is a row for every token of the prompt, or none at all."""
    if not request.prompt_embeds:
        return
    wanted = len(request.prompt_ids) * width_for(manifest, "prompt_embeds") * FLOAT_BYTES
    if len(request.prompt_embeds) != wanted:
        raise InvalidRequest(f"'prompt_embeds' has {len(request.prompt_embeds)} bytes, {wanted} are expected.")


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class ChatPrompts:
    """Of one bundle. All methods belong to one event loop."""

    def __init__(
        self, maker: PromptMaker, vision: VisionSpec | None, limits: HelperLimits, label: str, in_thread: InThread
    ) -> None:
        self._maker, self._vision, self._in_thread = maker, vision, in_thread
        source = maker.template_source
        self._templates = TemplatePool(source, limits, label=label) if source is not None else None
        self._images = ImagePool(vision, label=label) if vision is not None else None

    async def start(self) -> None:
        """Compile the template, if there is one. BundleError, EngineFailure."""
        if self._templates is not None:
            await self._templates.start()

    async def close(self) -> None:
        for pool in (self._templates, self._images):
            if pool is not None:
                await pool.close()

    async def prompt(
        self, messages: Chat, tools: Chat | None, options: Mapping[str, Any], limit: int, keep: int | None
    ) -> tuple[int, ...] | ImagePrompt:
        """As `Engine.chat_prompt`, for a context of `limit` tokens."""
        maker, vision = self._maker, self._vision
        tiles = await self._read_images(messages, keep)

        def asked() -> tuple[ChatPrompt, bytes]:
            prompt = maker.chat(without_pixels(messages), tools, options, limit, keep)
            return prompt, encode_request(prompt.request)

        def answered() -> tuple[int, ...] | ImagePrompt:
            rendered = decode(answer, Rendered)
            if vision is None or not tiles:
                return maker.chat_ids(prompt, rendered)
            ids = maker.chat_ids(prompt, rendered, lambda text: placed_text(text, vision, tiles))
            return placed_prompt(ids, vision, tiles)

        prompt, question = await self._in_thread(asked)
        assert self._templates is not None  # otherwise `chat` has refused
        answer = await self._templates.render(question)
        return await self._in_thread(answered)

    async def _read_images(self, messages: Chat, keep: int | None) -> list[ImageTiles]:
        """The images of a chat, one after the other; none for a model of text, whose prompt refuses them."""
        if self._images is None:
            return []
        images = images_of(messages)
        if images and keep is not None:
            raise InvalidRequest("A prompt with images cannot be truncated.", "truncate_prompt_tokens")
        return [await self._images.tiles(await self._in_thread(image.picture), image.param) for image in images]
