"""llama.cpp's converter of checkpoints on tiny models: `python converting.py LLAMA_CPP`.

Each line of standard input is a JSON list of its arguments; a line of standard output says how that ended: exit code
and last words. It is loaded once, which takes seconds, and each conversion is a process forked from that.
It knows tokenizers by what they make of a text, and ours it does not know: it is told that they are GPT-2's.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

LAST = 2000


def kinds(kind: Any) -> Iterator[Any]:
    """A class and all that are made of it."""
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


def load(source: str) -> Callable[[], None]:
    """The converter, which reads `sys.argv`."""
    sys.path.insert(0, source)
    base = importlib.import_module("conversion.base").TextModel
    importlib.import_module("conversion").load_all_models()
    base.get_vocab_base_pre = lambda *_: "gpt-2"
    for kind in kinds(base):
        kind.set_vocab = base._set_vocab_gpt2
    main: Callable[[], None] = importlib.import_module("convert_hf_to_gguf").main
    return main


def run(convert: Callable[[], None], arguments: list[str], said: int) -> None:
    """In the forked process. said: a file for its output."""
    os.dup2(said, sys.stdout.fileno())
    os.dup2(said, sys.stderr.fileno())
    sys.argv[1:] = arguments
    convert()


def main(source: str) -> None:
    """Convert until standard input ends."""
    convert = load(source)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            process = get_context("fork").Process(target=run, args=(convert, json.loads(line), said.fileno()))
            process.start()
            process.join()
            said.seek(0)
            words = said.read().decode("utf-8", "replace")
        print(json.dumps([process.exitcode, words[-LAST:]]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
