"""What a bundle is made of: a Hugging Face folder or a GGUF file, with the same three things in it."""

from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from engine.bundle.manifest import TextSpec
from engine.compile.sources.checkpoint import Checkpoint, SafetensorsCheckpoint, read_json, read_optional_json
from engine.compile.sources.quantised.checkpoint import QuantisedCheckpoint
from engine.compile.sources.text_files import write_text_files
from engine.errors import CompileError
from engine.files import is_gguf, is_regular
from engine.models.stored_codes import read_stored_codes
from engine.models.vision import text_alone
from engine.processes import install_command


class Source(Protocol):
    """config: the network's facts as config.json tells them. remark: what of it is not used, and why, "" = nothing."""

    @property
    def config(self) -> dict[str, object]: ...

    @property
    def remark(self) -> str: ...

    def float_bytes(self) -> int:
        """Bytes of a file's weights as float32 when it holds every matrix in a float type, else 0."""

    def end_ids(self) -> tuple[int, ...]:
        """Tokens that it says end an answer; CompileError when what says so cannot be read."""

    def tensors(self) -> AbstractContextManager[Checkpoint]:
        """The tensors, while the context lasts."""

    def processor(self) -> dict[str, object]:
        """How images are prepared, as preprocessor_config.json tells it; nothing where none are read."""

    def write_text(self, folder: Path, vocab: int) -> TextSpec:
        """Write tokenizer and template into a bundle's folder and describe them; CompileError when unusable."""


class FolderSource:
    """A Hugging Face folder. with_images: as `open_source` has it."""

    def __init__(self, folder: Path, with_images: bool = True) -> None:
        self._folder = folder
        config = read_json(folder / "config.json")
        self.config = config if with_images else text_alone(config)
        self.remark = ""

    def float_bytes(self) -> int:
        """A folder keeps nothing as it is: floats are asked for by name."""
        return 0

    def end_ids(self) -> tuple[int, ...]:
        """Of generation_config.json, else of config.json."""
        generation = read_optional_json(self._folder / "generation_config.json")
        declared = generation.get("eos_token_id", self.config.get("eos_token_id"))
        return tuple(end for end in (declared if isinstance(declared, list) else [declared]) if isinstance(end, int))

    def tensors(self) -> AbstractContextManager[Checkpoint]:
        """Of its safetensors files. UnsupportedModel for a way of quantising that is not read."""
        file, stored = SafetensorsCheckpoint(self._folder), read_stored_codes(self.config)
        return file if stored is None else QuantisedCheckpoint(file, stored)

    def processor(self) -> dict[str, object]:
        """Of a file of its own, or of that of all its parts."""
        if own := read_optional_json(self._folder / "preprocessor_config.json"):
            return own
        inner = read_optional_json(self._folder / "processor_config.json").get("image_processor")
        return inner if isinstance(inner, dict) else {}

    def write_text(self, folder: Path, vocab: int) -> TextSpec:
        return write_text_files(self._folder, folder, self.config, vocab)


def open_source(path: Path, with_images: bool = True) -> Source:
    """A folder or a GGUF file. CompileError when its facts cannot be read, or not without another package. with_images:
    what lies beside a GGUF file and reads images belongs to it, and to a folder its encoder of images, of a family that
    also comes without one."""
    if not is_gguf(path) and not is_model_file(path):
        return FolderSource(path, with_images)
    if find_spec("gguf") is None:
        raise CompileError(f"GGUF files need one more package: {install_command('compile')}")
    # The package for block formats takes a moment to import, and folders have no use for it.
    from engine.compile.sources.gguf.file import GgufSource  # noqa: PLC0415

    return GgufSource(path, with_images)


def is_model_file(path: Path) -> bool:
    """Whether a file lies there that can be looked at."""
    try:
        return is_regular(path)
    except OSError:  # what stands in the way is told when the folder is read
        return False
