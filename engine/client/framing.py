"""Bytes as they come to whole frames, without I/O. The format is defined in `engine/messages.py`."""

from engine.messages import frame_length

HEADER_BYTES = 4


class FrameSplitter:
    """Cuts a byte stream into frame bodies wherever its chunks happen to end."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet; more than 0 at end of input means a broken stream."""
        return len(self._pending)

    def push(self, data: bytes) -> None:
        """Take more bytes."""
        self._pending += data

    def pop(self) -> bytes | None:
        """Body of the next complete frame, None when there is none. ValueError when a header has an absurd length."""
        pending = self._pending
        if len(pending) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + frame_length(bytes(pending[:HEADER_BYTES]))
        if len(pending) < end:
            return None
        body = bytes(pending[HEADER_BYTES:end])
        del pending[:end]  # cheap: a bytearray moves its start, not its bytes
        return body
