"""Chats to prompts: the template renders and images are read in processes of their own, the rest in a thread."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from engine.bundle.vision import VisionSpec
from engine.errors import InvalidRequest
from engine.isolation.helper_pool import HelperLimits
from engine.request import ImagePrompt
from engine.text.prompt import ChatPrompt, PromptMaker
from engine.text.rendering import Rendered, decode, encode_request
from engine.text.template_pool import TemplatePool
from engine.vision.given import images_of, without_pixels
from engine.vision.placing import placed_prompt, placed_text
from engine.vision.pool import ImagePool
from engine.vision.question import ImageTiles

T = TypeVar("T")
Chat = Sequence[Mapping[str, Any]]


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class ChatPrompts:
    """Of one bundle. All methods belong to one event loop."""

    def __init__(
        self, maker: PromptMaker, vision: VisionSpec | None, limits: HelperLimits, label: str, in_thread: InThread
    ) -> None:
        self._maker = maker
        self._vision = vision
        self._in_thread = in_thread
        source = maker.template_source
        self._templates = TemplatePool(source, limits, label=label) if source is not None else None
        self._images = ImagePool(vision, label=label) if vision is not None else None

    async def start(self) -> None:
        """Compile the template, if there is one. BundleError, EngineFailure."""
        if self._templates is not None:
            await self._templates.start()

    async def close(self) -> None:
        """End every process. May be repeated."""
        for pool in (self._templates, self._images):
            if pool is not None:
                await pool.close()

    async def prompt(
        self,
        messages: Chat,
        tools: Chat | None,
        options: Mapping[str, Any],
        limit: int,
        keep: int | None,
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
