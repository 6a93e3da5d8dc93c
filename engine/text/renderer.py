"""The process that renders one chat template: `python -m engine.text.renderer`. Each conversation is one frame.

An empty frame says that it is up. The first frame it reads has the template and is answered by an empty `Rendered`, or
by why the template cannot be compiled. What takes too long ends the process, what takes too much memory does not.
"""

import sys

from engine.errors import BundleError
from engine.isolation.inside import HelperFrames, bound_memory, ending_after
from engine.text.chat_template import ChatTemplate
from engine.text.rendering import (
    MEMORY_BYTES,
    TOO_MUCH_MEMORY,
    Rendered,
    decode_opening,
    decode_request,
    encode,
)


def main(arguments: list[str]) -> int:
    """Render until end of input; 3 when the template cannot be compiled (said in the first answer), 2 for arguments."""
    if arguments:
        print("the renderer takes no arguments", file=sys.stderr)
        return 2
    bound_memory(MEMORY_BYTES)
    frames = HelperFrames()
    frames.write(b"")
    body = frames.read()
    if body is None:
        return 0
    opening = decode_opening(body)
    try:
        with ending_after(opening.compile_s):
            template = ChatTemplate(opening.source, longest_s=opening.longest_s)
    except BundleError as error:
        frames.write(encode(Rendered(error=str(error))))
        return 3
    frames.write(encode(Rendered()))
    while (body := frames.read()) is not None:
        with ending_after(opening.longest_s):
            answer = rendered(template, body)
        frames.write(answer)
    return 0


def rendered(template: ChatTemplate, body: bytes) -> bytes:
    """The answer to one frame; reading and writing it count as the template's work."""
    try:
        return encode(template.answer(decode_request(body)))
    except MemoryError:
        return encode(Rendered(error=TOO_MUCH_MEMORY))
    except (ValueError, RecursionError) as error:  # a number that Python does not read
        return encode(Rendered(error=f"The chat template cannot be given these messages: {error}"))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(1)
