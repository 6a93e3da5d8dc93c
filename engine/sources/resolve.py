"""From what the user names (the demo, a checkpoint, a bundle) to a bundle folder, compiling into a cache if needed.

The compiler runs in its own process: serving never imports it, and its memory is gone when it ends.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engine.bundle.hashes import remember
from engine.bundle.manifest import FORMAT_VERSION, MANIFEST_FILE, load_manifest
from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.files.names import GGUF_SUFFIX
from engine.files.opening import is_regular, shown
from engine.genie.config import is_genie_folder
from engine.isolation.memory import usable_memory
from engine.models.encoders.recognition import is_encoder_folder
from engine.models.float_size import float_bytes, generator_quant, quant_by_size
from engine.processes import child_environment, module_command
from engine.sources.converted import convert_folder, is_good
from engine.sources.lock import exclusive
from engine.sources.publish import remove_stale
from engine.sources.retention import lock_of, mark_used, remove_unused

DEMO_QUANT = "fp32"
LARGE_ENCODER_QUANT, FOUR_BITS = "int8", "int4"
GGUF_QUANT = "keep"
NAMED = f"a bundle folder, a Hugging Face folder, a {GGUF_SUFFIX} file, {' or '.join(map(repr, SHIPPED))}"
END_WITH_INPUT = "--end-with-input"  # of `python -m engine.compile`
COSTS_FOLDER = "costs"  # in the cache: what was measured and checked of its bundles

_COMPILER_FOLDERS = ("bundle", "compile", "models")


def resolve_bundle(source: str, cache: Path, quant: str | None = None, lora: bool = False) -> Path:
    """The bundle folder for a shipped model's name, a Hugging Face folder, a GGUF file, a Genie or a bundle folder.

    cache: where compiled bundles are kept. quant: of what is compiled, None = fp32 for shipped models, keep for a GGUF
    file, for an encoder fp32 if that is small, else int8, for other folders int8, or int4 where memory is short.
    lora: what has to be compiled is compiled for adapters.
    Raises BundleError with a sentence for anything else and for a compilation that failed.
    """
    if source in SHIPPED:
        return _compiled(SHIPPED[source](), source, cache, quant or DEMO_QUANT, lora)
    folder = _expanded(source)
    try:
        return _found(folder, source, cache, quant, lora)
    except OSError as error:
        raise BundleError(f"{source} cannot be read: {shown(error)}") from error


def _found(folder: Path, source: str, cache: Path, quant: str | None, lora: bool) -> Path:
    """The bundle of what exists. Only regular files tell what it is, and OSError when they cannot be seen."""
    if not folder.exists():
        raise BundleError(f"{source} does not exist; name {NAMED}")
    if folder.suffix == GGUF_SUFFIX and is_regular(folder):
        return _compiled(folder, folder.stem, cache, quant or GGUF_QUANT, lora)
    if not folder.is_dir():
        raise BundleError(f"{source} is a file; name {NAMED}")
    if is_regular(folder / MANIFEST_FILE):
        return folder
    if is_genie_folder(folder):
        return convert_folder(folder, cache)
    if is_regular(folder / "config.json"):
        return _compiled(folder, folder.resolve().name, cache, quant or _checkpoint_quant(folder), lora)
    raise BundleError(
        f"{source} is neither a bundle (it has no {MANIFEST_FILE}) nor a checkpoint (no config.json) "
        "nor for Genie (no genie_config.json)"
    )


def _checkpoint_quant(folder: Path) -> str:
    """The method for a folder when none is asked for: the nearest to its floats that its size allows."""
    size = float_bytes(folder)
    if is_encoder_folder(folder):
        return quant_by_size(size, LARGE_ENCODER_QUANT)
    found, machine = generator_quant(size, usable_memory()), usable_memory()
    if found == FOUR_BITS:
        told = f"8 bits a weight would take more than half of the memory, {machine / 1e9:.1f} GB"
        print(f"{folder.name}: {told}; 4 bits are chosen, which takes long", file=sys.stderr, flush=True)
    return found


def cache_folder(setting: str) -> Path:
    """The folder that a setting names, the default one if empty. BundleError when it lies in a home that is none."""
    return _expanded(setting) if setting else default_cache()


def default_cache() -> Path:
    """The platform's folder for files that can be made again. BundleError when it would be in a home that is none."""
    try:
        return _platform_cache()
    except RuntimeError:
        raise BundleError("this account has no home folder: name a folder for the cache with cache_dir") from None


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BundleError(f"{path} names a home folder that does not exist") from None


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "hexserve" / "bundles"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hexserve" / "bundles"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hexserve" / "bundles"


def bundle_key(folder: Path, arguments: tuple[str, ...]) -> str:
    """Names one compilation: the checkpoint's files, the arguments, and the compiler that would run."""
    package = Path(__file__).resolve().parents[1]
    facts = [_version(), FORMAT_VERSION, _stamps(folder), list(arguments), compiler_stamps(package)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def compiler_stamps(package: Path) -> list[tuple[str, int, int]]:
    """Path, size in bytes and modification time in ns of every Python file that a bundle's contents may depend on."""
    paths = sorted(path for name in _COMPILER_FOLDERS for path in (package / name).rglob("*.py"))
    return [(path.relative_to(package).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _stamps(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and modification time of a file, or of a folder's files, and of the configs of its parts."""
    if not source.is_dir():
        return [(source.name, source.stat().st_size, source.stat().st_mtime_ns)]
    paths = sorted(path for path in (*source.iterdir(), *source.glob("*/config.json")) if path.is_file())
    return [(path.relative_to(source).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _version() -> str:
    try:
        return importlib.metadata.version("hexserve")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _compiled(folder: Path, name: str, cache: Path, quant: str, lora: bool) -> Path:
    """The cached bundle of a checkpoint; the process that gets the lock first compiles it, other ones wait."""
    options: dict[str, str | bool | None] = {"quant": quant, "name": name, **({"lora": True} if lora else {})}
    if quant == FOUR_BITS:
        options["quality"] = None  # codes are chosen, except those that a file has
    target = cache / f"{name}-{quant}-{bundle_key(folder, (quant, name, *['lora'] * lora))}"
    mark_used(target)
    if is_good(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_of(target), lambda: _say_waiting(name)):
            if not is_good(target):
                shutil.rmtree(target, ignore_errors=True)  # a damaged one, possibly without its manifest
                _compile(folder, target, options)
                remember(target, load_manifest(target), cache / COSTS_FOLDER)
        with suppress(OSError):  # such as another process that tidies up as well
            remove_unused(cache)
    except OSError as error:
        reason = error.strerror or error
        raise BundleError(f"the bundle cache {cache} cannot be used: {reason}; cache_dir names another") from error
    return target


def _say_waiting(name: str) -> None:
    print(f"another process compiles {name} already: waiting until it is done", file=sys.stderr, flush=True)


def _compile(folder: Path, target: Path, options: Mapping[str, str | bool | None]) -> None:
    """Run the compiler with its progress on our stderr. Two that race are safe: the output is renamed into place."""
    if importlib.util.find_spec("onnx") is None:
        raise BundleError(f"{folder} has to be compiled first, which needs: pip install 'hexserve[compile]'")
    # The fields of `CompileArguments`, which stays unknown here: the compiler imports this folder.
    arguments = json.dumps({"source": str(folder), "output": str(target), **options})
    command = module_command("engine.compile", END_WITH_INPUT, arguments)
    its_input, ours = os.pipe()  # nobody writes: it ends when we do, also when we are killed
    try:
        result = subprocess.run(command, env=child_environment(), stdin=its_input, check=False)
    finally:
        os.close(its_input)
        os.close(ours)
        remove_stale(target)  # a signal to us kills the compiler before it can remove its draft
    if is_good(target):
        return
    if result.returncode != 0:
        raise BundleError(f"{folder} could not be compiled (exit code {result.returncode}); the reason is above")
    load_manifest(target)  # says what is wrong with what it wrote
    raise BundleError(f"{folder} could not be compiled: the compiler wrote no bundle")
