"""What is done with a damaged input: everything that serving or compiling it would do, in this process."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

import msgspec
import pydantic.main  # noqa: F401 (what a case loads as nobody is not found)

from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import describe_file, load_manifest
from engine.bundle.variant import shape_table
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError, HexserveError
from engine.files import MANIFEST_BYTES, one_line, read_bytes
from engine.genie.convert import Toolbox
from engine.grammar.masks import GrammarFailed, load_tokenizer
from engine.runtime.qnn.binary import BinaryInfo
from engine.sources.resolve import convert_folder, resolve_bundle
from engine.text.renderer import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.worker.assembly import assemble
from server.commands.bundle_tables import describe
from server.middleware.auth import read_keys
from server.settings import load_settings

# Every command prints one of these as its sentence and ends with a documented exit code.
REFUSALS = (HexserveError, GrammarFailed)
DESCRIPTIONS = "binaries.json"  # of a Genie folder's binaries, which are placeholders


@dataclass(frozen=True)
class Exercise:
    """use(folder, scratch): use the input in `folder`. main: the files that are damaged most."""

    use: Callable[[Path, Path], None]
    main: tuple[str, ...]


def serve_bundle(folder: Path, scratch: Path) -> None:
    """Text side, graphs, timed steps, the tokenizer of structured output."""
    found = resolve_bundle(str(folder), scratch / "cache")
    manifest = load_manifest(found)
    Tokenizer.load(found, manifest.text)
    if manifest.text.chat_template:
        ChatTemplate.load(found / manifest.text.chat_template)
    assembled = assemble(EngineConfig(bundle=str(found), threads=1, max_rows=8))
    assembled.loop.close()
    assembled.runtime.close()
    load_tokenizer(found / manifest.text.tokenizer, manifest.model.vocab, manifest.text.stop_ids)


def serve_consistent_bundle(folder: Path, scratch: Path) -> None:
    """The same after sizes and hashes were made those of the damaged files, as somebody hostile would."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
        rehash(folder)
    serve_bundle(folder, scratch)


def read_segments(folder: Path, scratch: Path) -> None:
    """A manifest of segments against itself, and drawn."""
    manifest = load_manifest(folder)
    check_listed(manifest)
    check_contract(manifest)
    assert shape_table(manifest, 8).max_past > 0
    describe(folder)


def rehash(folder: Path) -> None:
    """Sizes and hashes of the files as they are; bounds do not count here."""
    plain = msgspec.json.decode(read_bytes(folder / "manifest.json", MANIFEST_BYTES))
    if not isinstance(plain, dict) or not isinstance(plain.get("files"), dict):
        return
    for name in plain["files"]:
        if (folder / name).is_file() and (folder / name).stat().st_size < 1 << 24:
            plain["files"][name] = msgspec.to_builtins(describe_file(folder / name))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(plain))


def compile_checkpoint(folder: Path, scratch: Path) -> None:
    """A bundle of it, whose figures are numbers."""
    made = compile_bundle(CompileArguments(folder, scratch / "bundle", parity_tokens=4), SilentProgress())
    assert all(map(isfinite, made.parity.values()))
    load_manifest(scratch / "bundle")


def compile_gguf(folder: Path, scratch: Path) -> None:
    """The same of a file."""
    arguments = CompileArguments(folder / "model.gguf", scratch / "bundle", quant=Quant.KEEP, parity_tokens=4)
    made = compile_bundle(arguments, SilentProgress())
    assert all(map(isfinite, made.parity.values()))
    load_manifest(scratch / "bundle")


def compile_images(model: str, folder: Path, scratch: Path) -> None:
    """A GGUF model and what reads images for it."""
    arguments = CompileArguments(folder / model, scratch / "bundle", quant=Quant.FP32, parity_tokens=4)
    compile_bundle(arguments, SilentProgress())
    load_manifest(scratch / "bundle")


def compile_whisper(folder: Path, scratch: Path) -> None:
    """A file of whisper.cpp."""
    compile_bundle(CompileArguments(folder / "ggml-tiny.bin", scratch / "bundle", quant=Quant.FP32), SilentProgress())
    load_manifest(scratch / "bundle")


def convert_genie(folder: Path, scratch: Path) -> None:
    """A bundle of it, without the binaries' own content."""
    tools = Toolbox(lambda path: _described(folder, path.name), "")
    found = convert_folder(folder, scratch / "cache", tools)
    Tokenizer.load(found, load_manifest(found).text)


def _described(folder: Path, name: str) -> BinaryInfo:
    try:
        return msgspec.json.decode(read_bytes(folder / DESCRIPTIONS, MANIFEST_BYTES), type=dict[str, BinaryInfo])[name]
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError, KeyError) as error:
        raise BundleError(f"{name} cannot be described: {one_line(error)}") from error


def read_settings(folder: Path, scratch: Path) -> None:
    """As `serve` does."""
    load_settings({}, {}, folder / "settings.toml")


def read_key_file(folder: Path, scratch: Path) -> None:
    """As `serve` does."""
    assert len(read_keys("", str(folder / "keys")))


def load_template(folder: Path, scratch: Path) -> None:
    """Compiled, not rendered: rendering has a process and a budget of its own."""
    ChatTemplate.load(folder / "chat_template.jinja")


CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json")
EXERCISES = {
    "bundle": Exercise(serve_bundle, ("manifest.json", "tokenizer.json", "chat_template.jinja")),
    "consistent bundle": Exercise(serve_consistent_bundle, ("manifest.json", "tokenizer.json", "free_1_of_2.onnx")),
    "segments": Exercise(read_segments, ("manifest.json",)),
    "float segments": Exercise(read_segments, ("manifest.json",)),
    "consistent segments": Exercise(
        serve_consistent_bundle,
        ("manifest.json", "linear_2_of_3.onnx", "linear_2_of_3_wide.onnx", "attention.onnx", "attention_base.onnx"),
    ),
    "images": Exercise(partial(compile_images, "idefics3-f32.gguf"), ("mmproj-idefics3-f32.gguf",)),
    "images of gemma3": Exercise(partial(compile_images, "gemma3-f32.gguf"), ("mmproj-gemma3-f32.gguf",)),
    "whisper": Exercise(compile_whisper, ("ggml-tiny.bin",)),
    "fused": Exercise(serve_bundle, ("manifest.json",)),
    "consistent fused": Exercise(
        serve_consistent_bundle, ("manifest.json", "model.0.s1.onnx", "model.0.pd.s8.onnx", "part_1_of_1.data")
    ),
    "checkpoint": Exercise(compile_checkpoint, (*CONFIGS, "model-00000.safetensors", "model.safetensors.index.json")),
    "encoder": Exercise(serve_bundle, ("manifest.json", "tokenizer.json")),
    "consistent encoder": Exercise(
        serve_consistent_bundle, ("manifest.json", "ar8_cl8_1_of_1.onnx", "part_1_of_1.data", "score_head.bin")
    ),
    "encoder checkpoint": Exercise(
        compile_checkpoint,
        ("config.json", "tokenizer.json", "modules.json", "sentence_bert_config.json", "model.safetensors"),
    ),
    "gguf": Exercise(compile_gguf, ("model.gguf",)),
    "hybrid gguf": Exercise(compile_gguf, ("model.gguf",)),
    "genie": Exercise(convert_genie, ("genie_config.json", DESCRIPTIONS, *CONFIGS)),
    "settings": Exercise(read_settings, ("settings.toml",)),
    "keys": Exercise(read_key_file, ("keys",)),
    "template": Exercise(load_template, ("chat_template.jinja",)),
}
