"""The process that reads images: `python -m engine.vision.reader`. Each image is one frame.

An empty frame says that it is up. The first frame it reads says how images are cut, and is answered by an empty one.
What takes too long ends the process, what takes too much memory does not.
"""

import sys
import warnings

from engine.isolation.inside import HelperFrames, bound_memory, ending_after
from engine.vision.pictures import tiles_of
from engine.vision.question import MEMORY_BYTES, decode_opening, decode_picture, encode


def main(arguments: list[str]) -> int:
    """Read images until end of input; 2 for arguments."""
    if arguments:
        print("the reader of images takes no arguments", file=sys.stderr)
        return 2
    bound_memory(MEMORY_BYTES)
    warnings.simplefilter("ignore")  # of what is odd in a client's file
    frames = HelperFrames()
    frames.write(b"")
    body = frames.read()
    if body is None:
        return 0
    opening = decode_opening(body)
    frames.write(b"")
    while (body := frames.read()) is not None:
        with ending_after(opening.longest_s):
            answer = encode(tiles_of(decode_picture(body), opening.vision))
        frames.write(answer)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(1)
