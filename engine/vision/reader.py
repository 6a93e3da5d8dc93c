"""The process that reads images: `python -m engine.vision.reader`. Each image is one frame.

An empty frame says that it is up. The first frame it reads says how images are cut, and is answered by an empty one.
What takes too long ends the process, what takes too much memory does not.
"""

import sys
import warnings

import msgspec

from engine.isolation.inside import Opened, serve
from engine.vision.pictures import tiles_of
from engine.vision.question import MEMORY_BYTES, Opening, Picture


def opened(body: bytes) -> Opened:
    """A reader that cuts images as the opening says."""
    warnings.simplefilter("ignore")  # of what is odd in a client's file
    opening = msgspec.msgpack.decode(body, type=Opening)

    def answer(question: bytes) -> bytes:
        return msgspec.msgpack.encode(tiles_of(msgspec.msgpack.decode(question, type=Picture), opening.vision))

    return Opened(b"", opening.longest_s, answer)


if __name__ == "__main__":
    try:
        sys.exit(serve(MEMORY_BYTES, opened))
    except KeyboardInterrupt:
        sys.exit(1)
