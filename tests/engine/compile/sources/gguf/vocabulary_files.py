"""GGUF files of a vocabulary alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf

from engine.bundle.manifest import TextSpec
from engine.compile.sources.gguf.header import read_header
from engine.compile.sources.gguf.tokenizers import write_gguf_text
from engine.text import tokenizer as served

TEXTS = (
    "Hello world, it's 12345 o'clock — isn't IT?",
    "  two spaces,\ttabs\t\tand\n\nlines \r\n\r\n   \n",
    "naïve café, Größe, e\u0301 decomposed, ﬁ ligature",
    "日本語のテキスト、中文文本。한국어 텍스트 ไทย हिन्दी العربية",
    "🙂👩‍👩‍👧 emoji \u200b zero width \x00\x07 control \ufeff mark",
    "def f(x): return {'a': [1, 2.50, 0xFF]}  # ok_then\n\tpass",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><think>hm</think> <|im_start",
    "",
    " ",
    "a" * 300,
)


def vocabulary_file(path: Path, **values: Any) -> Path:
    """Metadata below `tokenizer.ggml.`, arrays and strings as they are, other numbers as ids. None leaves a key out."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list | bytes):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_file(**changes: Any) -> Callable[[Path], Path]:
    """A byte-level tokenizer of some letters, of which one thing is otherwise."""
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
    return lambda path: vocabulary_file(path, **(values | changes))


def read(path: Path, folder: Path, vocab: int = 1 << 20) -> tuple[TextSpec, served.Tokenizer]:
    """What the bundle would have of the file, as the server reads it."""
    folder.mkdir(exist_ok=True)
    spec = write_gguf_text(read_header(path), folder, vocab)
    return spec, served.Tokenizer.load(folder, spec)
