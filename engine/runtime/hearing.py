"""What runtimes of speech have in common: slots, each of which has heard the sound of one text."""

from abc import abstractmethod

from engine.bundle.tensors import Array
from engine.bundle.variant import ShapeTable
from engine.runtime.interface import PackedSegment, Runtime


class HearingRuntime(Runtime):
    """`_cross`: keys and values of what was heard, by name, each [slots, ...]; whoever inherits fills it."""

    def __init__(self, shapes: ShapeTable, device: str, slots: int) -> None:
        super().__init__(shapes, device)
        self._cross: dict[str, Array] = {}
        self._heard = [b""] * slots

    def _hear(self, segment: PackedSegment) -> int:
        """The slot of a text, which has heard its audio: copied where another slot has heard the same."""
        slot = segment.blocks[0]
        if self._heard[slot] != segment.state_key or not segment.state_key:
            other = self._heard.index(segment.state_key) if segment.state_key in self._heard else None
            self._heard[slot] = b""
            if segment.state_key and other is not None:
                for array in self._cross.values():
                    array[slot] = array[other]
            else:
                self._encode(slot, segment.audio)
            self._heard[slot] = segment.state_key
            self._parts.mark("encoder")
        return slot

    @abstractmethod
    def _encode(self, slot: int, audio: bytes) -> None:
        """Fill a slot's part of `_cross` from little-endian float32 frames. StepFailed."""
