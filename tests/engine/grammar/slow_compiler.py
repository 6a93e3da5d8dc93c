"""A grammar compiler that does what the pattern says: `hang`, `die`, `die once`, `refuse`, or an answer.

Notes its starts in a file.
"""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.grammar.spec import Compiled, Regex, decode_opening, decode_spec, encode
from engine.isolation.framing import HelperFrames, ending_after


def main() -> None:
    folder = Path(sys.argv[1])
    with (folder / "starts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    frames = HelperFrames()
    frames.write(b"")
    opening = frames.read()
    assert opening is not None
    frames.write(encode(Compiled()))
    while (body := frames.read()) is not None:
        form = decode_spec(body).form
        assert isinstance(form, Regex)
        if form.pattern == "hang":
            (folder / "hanging").touch()
            with ending_after(decode_opening(opening).longest_s):
                threading.Event().wait()
        is_first = len((folder / "starts").read_text().split()) == 1
        if form.pattern == "die" or (form.pattern == "die once" and is_first):
            os._exit(1)
        if form.pattern == "refuse":
            frames.write(encode(Compiled(error="it is refused")))
            continue
        frames.write(encode(Compiled(f"grammar of {form.pattern}")))


if __name__ == "__main__":
    main()
