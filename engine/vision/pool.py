"""Images are read in processes of their own: one that is hostile costs its own request and nobody else."""

from collections.abc import Sequence

import msgspec

from engine.bundle.vision import VisionSpec
from engine.errors import EngineFailure, InvalidRequest
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from engine.processes import module_command
from engine.vision.question import ImageTiles, Opening, Picture

READER = tuple(module_command("engine.vision.pictures"))
LIMITS = HelperLimits(budget_s=10.0, processes=2)


class ImagePool(HelperPool):
    """All methods belong to one event loop. `command` starts a reader, the first one with the first image."""

    def __init__(
        self, spec: VisionSpec, limits: HelperLimits = LIMITS, command: Sequence[str] = READER, label: str = ""
    ) -> None:
        opening = msgspec.msgpack.encode(Opening(spec, limits.budget_s))
        super().__init__("the process that reads images", command, opening, _accept, limits, label)

    async def tiles(self, picture: Picture, param: str) -> ImageTiles:
        """An image in tiles. InvalidRequest naming `param` for one that cannot be read within its bounds, EngineFailure
        when no process can be started, Busy when the server is shutting down."""
        answer = await self.ask(msgspec.msgpack.encode(picture))
        if answer is Failure.DIED:
            raise InvalidRequest(f"'{param}' cannot be read within the limits of this server.", param)
        if isinstance(answer, Failure):
            raise InvalidRequest(f"'{param}' takes more than {self._budget_s:g} s to read.", param)
        tiles = msgspec.msgpack.decode(answer, type=ImageTiles)
        if tiles.error:
            raise InvalidRequest(f"'{param}' {tiles.error}", param)
        return tiles


def _accept(answer: Answer) -> None:
    if isinstance(answer, Failure):
        raise EngineFailure(f"Images cannot be read: the process that reads them failed ({answer}).")
