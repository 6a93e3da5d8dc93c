"""A grammar compiler that does what the pattern says: `hang`, `die`, or an answer. Notes its starts in a file."""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.grammar.compiler import LENGTH
from engine.grammar.spec import Compiled, Regex, decode_spec, encode_compiled


def answer(compiled: Compiled) -> None:
    body = encode_compiled(compiled)
    sys.stdout.buffer.write(LENGTH.pack(len(body)) + body)
    sys.stdout.buffer.flush()


def main() -> None:
    folder = Path(sys.argv[1])
    with (folder / "starts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    answer(Compiled())
    while header := sys.stdin.buffer.read(LENGTH.size):
        form = decode_spec(sys.stdin.buffer.read(LENGTH.unpack(header)[0])).form
        assert isinstance(form, Regex)
        if form.pattern == "hang":
            (folder / "hanging").touch()
            threading.Event().wait()
        if form.pattern == "die":
            os._exit(1)
        answer(Compiled(f"grammar of {form.pattern}"))


if __name__ == "__main__":
    main()
