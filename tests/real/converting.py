"""llama.cpp's converter of checkpoints on tiny models: `python converting.py LLAMA_CPP ARGUMENT...`.

It knows tokenizers by what they make of a text, and ours it does not know: it is told that they are GPT-2's.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any


def kinds(kind: Any) -> Iterator[Any]:
    """A class and all that are made of it."""
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


def main(source: str, arguments: list[str]) -> None:
    """Run it."""
    sys.path.insert(0, source)
    base = importlib.import_module("conversion.base").TextModel
    importlib.import_module("conversion").load_all_models()
    base.get_vocab_base_pre = lambda *_: "gpt-2"
    for kind in kinds(base):
        kind.set_vocab = base._set_vocab_gpt2
    sys.argv[1:] = arguments
    importlib.import_module("convert_hf_to_gguf").main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
