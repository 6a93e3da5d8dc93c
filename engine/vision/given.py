"""Images as clients give them: where they stand in the messages, and their bytes."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest
from engine.vision.question import LIMITS, Picture

MOST_IMAGES = 64  # of a request
DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,64};base64,")


@dataclass(frozen=True, slots=True)
class GivenImage:
    """url: as the client wrote it. param: the field. detail: how closely it is looked at."""

    url: str
    param: str
    detail: str = "auto"

    def picture(self) -> Picture:
        """Its bytes. InvalidRequest naming the field when it is no data URL, no base64, or too large."""
        head = DATA_URL.match(self.url)
        if head is None:
            raise InvalidRequest(
                f"'{self.param}' must be a data URL with an image in base64; this server takes none from "
                "elsewhere (setting `media`).",
                self.param,
            )
        encoded = self.url[head.end() :]
        if len(encoded.rstrip("=")) * 3 // 4 > LIMITS.most_bytes:
            raise InvalidRequest(f"'{self.param}' is larger than {LIMITS.most_bytes} bytes.", self.param)
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"'{self.param}' is not base64.", self.param) from None
        return Picture(content, is_small=self.detail == "low")


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[GivenImage]:
    """The images of a chat in order. InvalidRequest when there are too many."""
    found: list[GivenImage] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str) or not isinstance(content, Sequence):
            continue
        for index, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") == "image":
                param = part.get("param") or f"messages[{number}].content[{index}].image_url"
                found.append(GivenImage(part["url"], param, part.get("detail") or "auto"))
    if len(found) > MOST_IMAGES:
        raise InvalidRequest(f"The messages have {len(found)} images, {MOST_IMAGES} are the most.", "messages")
    return found


Part = Mapping[str, Any]


def without_pixels(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as a template reads them: it is told that there is an image, and nothing of it."""
    return with_images(messages, lambda _: {"type": "image"})


def with_images(messages: Sequence[Mapping[str, Any]], changed: Callable[[Part], Part]) -> list[dict[str, Any]]:
    """The messages with another part for each image."""
    return [dict(message) | {"content": _changed(message.get("content"), changed)} for message in messages]


def _changed(content: Any, changed: Callable[[Part], Part]) -> Any:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    return [changed(part) if isinstance(part, Mapping) and part.get("type") == "image" else part for part in content]
