"""A grammar compiler that does what the pattern says: `hang`, `die`, `die once`, `refuse`, or an answer.

Notes its starts in a file.
"""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.framing import framed, read_frame
from engine.grammar.spec import Compiled, Regex, decode_spec, encode_compiled


def answer(compiled: Compiled) -> None:
    sys.stdout.buffer.write(framed(encode_compiled(compiled)))
    sys.stdout.buffer.flush()


def main() -> None:
    folder = Path(sys.argv[1])
    with (folder / "starts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    answer(Compiled())
    while (body := read_frame(sys.stdin.buffer)) is not None:
        form = decode_spec(body).form
        assert isinstance(form, Regex)
        answer(Compiled())
        if form.pattern == "hang":
            (folder / "hanging").touch()
            threading.Event().wait()
        is_first = len((folder / "starts").read_text().split()) == 1
        if form.pattern == "die" or (form.pattern == "die once" and is_first):
            os._exit(1)
        if form.pattern == "refuse":
            answer(Compiled(error="it is refused"))
            continue
        answer(Compiled(f"grammar of {form.pattern}"))


if __name__ == "__main__":
    main()
