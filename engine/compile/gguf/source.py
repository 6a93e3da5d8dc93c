"""A GGUF file as a source of bundles."""

import math
from contextlib import AbstractContextManager
from pathlib import Path

from engine.bundle.float_file import FLOAT_BYTES
from engine.bundle.manifest import TextSpec
from engine.compile.checkpoint import Checkpoint
from engine.compile.gguf.architectures import architecture_of
from engine.compile.gguf.blocks import FLOAT_TYPES
from engine.compile.gguf.config import network_config
from engine.compile.gguf.geometry import read_geometry
from engine.compile.gguf.header import read_header
from engine.compile.gguf.tensors import gguf_tensors
from engine.compile.gguf.text import end_ids, write_gguf_text
from engine.compile.gguf.vocabulary import TokenizerFields


class GgufSource:
    """The facts are read at once, tensors and text when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._header = read_header(path)
        self._architecture = architecture_of(self._header)
        self._geometry = read_geometry(self._header, self._architecture)
        with gguf_tensors(self._header, self._architecture, self._geometry) as tensors:
            self.config = network_config(self._header, self._architecture, self._geometry, tensors)

    def float_bytes(self) -> int:
        """By the types of its tensors of two axes and more."""
        matrices = [stored for stored in self._header.tensors.values() if len(stored.shape) > 1]
        if any(stored.kind not in FLOAT_TYPES for stored in matrices):
            return 0
        return sum(FLOAT_BYTES * math.prod(stored.shape) for stored in matrices)

    def end_ids(self) -> tuple[int, ...]:
        """Of its header and of the names of its control tokens."""
        fields = TokenizerFields(self._header)
        return tuple(end_ids(fields, fields.vocabulary()))

    def tensors(self) -> AbstractContextManager[Checkpoint]:
        """Read from the file, which stays open."""
        return gguf_tensors(self._header, self._architecture, self._geometry)

    def write_text(self, folder: Path, vocab: int) -> TextSpec:
        """A tokenizer.json made of the file's tokens."""
        return write_gguf_text(self._header, folder, vocab)
