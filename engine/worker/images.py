"""Images are encoded in a thread beside the steps, and their rows remembered by the digest of their pixels.
So no decode waits for an image, and a conversation about one pays for it once."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from engine.errors import StepFailed
from engine.messages import Failed
from engine.request import PromptImage, Request

KEPT_BYTES = 256 * 1024 * 1024
Digest = bytes
Add = Callable[[Request], None]


@dataclass(slots=True)
class _Waiting:
    """A request that waits for the rows of its images. rows: those it has already."""

    request: Request
    add: Add
    rows: dict[Digest, bytes] = field(default_factory=dict)

    @property
    def missing(self) -> set[Digest]:
        return {image.digest for image in self.request.images} - self.rows.keys()

    def complete(self) -> Request:
        images = (replace(image, pixels=b"", features=self.rows[image.digest]) for image in self.request.images)
        return replace(self.request, images=tuple(images))


class ImageQueue:
    """Belongs to the loop's thread. encode: the rows of an image, called in a thread of its own; StepFailed.
    kept_bytes: of rows that are remembered, the least recently used of which go first. encoded: images so far, also
    those that could not be."""

    def __init__(self, encode: Callable[[PromptImage], bytes], kept_bytes: int = KEPT_BYTES) -> None:
        self.encoded = 0
        self._encode = encode
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Digest, bytes] = OrderedDict()
        self._size = 0
        self._running: dict[Digest, Future[bytes]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request, add: Add) -> None:
        """Have the images of a request encoded; `add` takes it with their rows."""
        waiting = self._waiting[request.id] = _Waiting(request, add)
        for image in request.images:
            if image.digest in self._kept:
                self._kept.move_to_end(image.digest)
                waiting.rows[image.digest] = self._kept[image.digest]
            elif image.digest not in self._running:
                self._running[image.digest] = self._thread.submit(self._encode, image)

    def forget(self, request_id: str) -> None:
        """Its images need not be encoded any more, unless another request has the same."""
        if self._waiting.pop(request_id, None) is None:
            return
        wanted = {digest for waiting in self._waiting.values() for digest in waiting.missing}
        for digest in self._running.keys() - wanted:
            if self._running[digest].cancel():
                del self._running[digest]

    def take_ready(self) -> tuple[list[tuple[Request, Add]], list[Failed]]:
        """The requests whose images are all encoded, with their rows, and those of which one could not be."""
        failures: list[Failed] = []
        for digest in [digest for digest, future in self._running.items() if future.done()]:
            failures += self._take(digest, self._running.pop(digest))
        ready = [self._waiting.pop(each.request.id) for each in list(self._waiting.values()) if not each.missing]
        return [(each.complete(), each.add) for each in ready], failures

    def wait(self, seconds: float) -> bool:
        """Until an image is encoded, at most so long. False at once when no request waits for one."""
        if self._waiting:
            wait(self._running.values(), seconds, FIRST_COMPLETED)
        return bool(self._waiting)

    def close(self) -> None:
        """Let the thread end after the image that it is at."""
        self._thread.shutdown(cancel_futures=True)

    def _take(self, digest: Digest, future: "Future[bytes]") -> list[Failed]:
        self.encoded += 1
        concerned = [waiting for waiting in self._waiting.values() if digest in waiting.missing]
        try:
            rows = future.result()
        except StepFailed as error:
            for waiting in concerned:
                del self._waiting[waiting.request.id]
            return [Failed(waiting.request.id, str(error)) for waiting in concerned]
        for waiting in concerned:
            waiting.rows[digest] = rows
        self._kept[digest] = rows
        self._size += len(rows)
        while self._size > self._kept_bytes:
            self._size -= len(self._kept.popitem(last=False)[1])
        return []
