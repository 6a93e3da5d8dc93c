"""From what the user names (the demo, a model by name, a checkpoint, a bundle) to a bundle folder, compiled if need be.
The compiler runs in its own process: serving never imports it, and its memory is gone when it ends."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from engine import files
from engine.bundle.manifest import FORMAT_VERSION, MANIFEST_FILE, load_manifest
from engine.bundle.weight_files import remember
from engine.demo.location import SHIPPED
from engine.doctor.memory_rate import memory_rate
from engine.errors import BundleError
from engine.genie.config import is_genie_folder
from engine.genie.convert import Toolbox, conversion_key, machine_tools, write_converted
from engine.genie.read import read_genie
from engine.genie.speech import is_hub_speech, read_hub_speech
from engine.isolation.machine import usable_memory
from engine.models.config_fields import INT8_SHARE, four_bits_because
from engine.models.stored_codes import checkpoint_quant, float_bytes
from engine.processes import child_environment, install_command, installed_version, module_command
from engine.sources.names import NAMED, LocalPath, Located
from engine.sources.publish import draft_beside, publish, remove_stale
from engine.sources.retention import LaterCompilations, exclusive, lock_of, mark_used, remove_unused


def convert_folder(folder: Path, cache: Path, tools: Toolbox | None = None) -> Path:
    """The bundle folder made of a Genie folder or AI Hub's Whisper, made again when its files or this software change.
    Raises BundleError for what cannot be served and for a cache that cannot be written."""
    target = cache / f"{folder.resolve().name}-genie-{conversion_key(folder)}"
    mark_used(target)
    if is_good(target):
        return target
    tools = tools or machine_tools(cache)
    with files.reading(folder):
        read = read_genie if is_genie_folder(folder) else read_hub_speech
    bundle = read(folder, tools.describe, tools.runtime)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_of(target), lambda: _say_waiting(bundle.manifest.name)):
            if not is_good(target):
                with draft_beside(target) as draft:
                    write_converted(bundle, draft)
                    publish(draft, target, replaces=lambda found: not is_good(found))
    except OSError as error:
        raise BundleError(f"the bundle cache {cache} cannot be used: {error.strerror or error}") from error
    return target


def is_good(folder: Path) -> bool:
    """Whether a finished bundle with all its files lies there."""
    try:
        load_manifest(folder)
    except BundleError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of a folder: its name, where it is, and whether it can be loaded without compiling."""

    name: str
    path: Path
    is_bundle: bool


def models_in(folder: Path) -> tuple[list[ListedModel], list[str]]:
    """The models in order of their file names, and a sentence for each entry that cannot be served. BundleError."""
    with files.reading(f"models_dir {folder}"):
        paths = sorted(folder.iterdir())
    found: list[ListedModel] = []
    problems: list[str] = []
    for path in paths:
        try:
            found += _model_at(path)
        except (BundleError, OSError) as error:
            problems.append(f"{path} is not served: {files.shown(error) if isinstance(error, OSError) else error}")
    return found, problems


def _model_at(path: Path) -> Iterator[ListedModel]:
    if files.is_regular(path / MANIFEST_FILE):
        # What a compiler that was broken off has left.
        if not (".partial-" in path.name or ".replaced-" in path.name):
            yield ListedModel(load_manifest(path).name, path, is_bundle=True)
    elif path.suffix == WHISPER_SUFFIX and files.is_ggml_whisper(path):
        yield ListedModel(path.stem, path, is_bundle=False)
    elif (
        files.is_gguf(path)
        and files.is_regular(path)
        and path == files.model_parts(path)[0]
        and not files.is_projector(path)
    ):
        yield ListedModel(files.model_name(path), path, is_bundle=False)
    elif is_genie_folder(path) or is_hub_speech(path) or files.is_regular(path / "config.json"):
        yield ListedModel(path.name, path, is_bundle=False)


DEMO_QUANT = "fp32"
EIGHT_BITS, FOUR_BITS = "int8", "int4"
LEAST_TIMED = 1e9  # bytes of weights that slow memory may have read too slowly
MOST_MEMORY = 0.8  # of the machine, for weights of 8 bits that serve until others are there
GGUF_QUANT = "keep"
WHISPER_SUFFIX = ".bin"  # of files of whisper.cpp
END_WITH_INPUT = "--end-with-input"  # of `python -m engine.compile`
COSTS_FOLDER = "costs"  # in the cache: what was measured and checked of its bundles

_COMPILER_FOLDERS = ("bundle", "compile", "models")


def locate(source: str, cache: Path) -> Located:
    """The files of a path or of a name that `read_name` knows. A path that exists wins. cache: where packages are
    unpacked. BundleError for what cannot be fetched and for a path where nothing is, OSError where nobody can look."""
    path = files.expanded(source)
    if not source.strip():
        raise BundleError("the name of a model must not be empty")
    if path.exists():
        return Located(path, "")
    # What speaks to servers takes a moment to import, and paths have no use for it.
    from engine.sources.fetched import FetchedModels  # noqa: PLC0415

    models = FetchedModels(cache)
    name = models.named(source)
    if isinstance(name, LocalPath):
        near = get_close_matches(source.lower(), [*models.entries, *SHIPPED], n=1)
        raise BundleError(f"{source} does not exist{f' (is {near[0]} meant?)' if near else ''}; name {NAMED}")
    found = models.fetch(name)
    return Located(found.path, source) if source in models.entries else found


def resolve_bundle(
    source: str, cache: Path, quant: str | None = None, lora: bool = False, later: LaterCompilations | None = None
) -> Path:
    """The bundle folder for a shipped model, a name that `locate` knows, a checkpoint, a Genie or a bundle folder.

    cache: where compiled bundles are kept. quant: of what is compiled, None = fp32 for shipped models, keep for a GGUF
    file, for an encoder fp32 if that is small, else int8, for other folders int8, int4 where memory is short or slow.
    lora: what has to be compiled is compiled for adapters. later: where it is given and 4 bits are to be chosen, which
    takes long, a bundle of 8 bits is found first and the other one is compiled there.
    Raises BundleError with a sentence for anything else and for a compilation that failed.
    """
    if source in SHIPPED:
        return compiled(Wanted(SHIPPED[source](), source, cache, quant or DEMO_QUANT, lora))
    with files.reading(source):
        return _found(locate(source, cache), source, cache, quant, lora, later)


def _found(
    located: Located, source: str, cache: Path, quant: str | None, lora: bool, later: LaterCompilations | None
) -> Path:
    """The bundle of what exists. Only regular files tell what it is, and OSError when they cannot be seen."""
    folder = located.path
    if files.is_gguf(folder) and files.is_regular(folder):
        return compiled(Wanted(folder, located.name or files.model_name(folder), cache, quant or GGUF_QUANT, lora))
    if files.is_ggml_whisper(folder):
        return compiled(Wanted(folder, located.name or folder.stem, cache, quant or EIGHT_BITS, lora))
    if not folder.is_dir():
        raise BundleError(f"{source} is a file; name {NAMED}")
    if files.is_regular(folder / MANIFEST_FILE):
        return folder
    if is_genie_folder(folder) or is_hub_speech(folder):
        return convert_folder(folder, cache)
    if files.is_regular(folder / "config.json"):
        name = located.name or folder.resolve().name
        if quant is not None:
            return compiled(Wanted(folder, name, cache, quant, lora))
        return _nearest(folder, name, cache, lora, later)
    raise BundleError(
        f"{source} is neither a bundle (it has no {MANIFEST_FILE}) nor a checkpoint (no config.json) "
        "nor for Genie (no genie_config.json)"
    )


def _nearest(folder: Path, name: str, cache: Path, lora: bool, later: LaterCompilations | None) -> Path:
    """The bundle of a checkpoint's folder when no method is asked for. Of 4 bits if there is one; where it would take
    long, one of 8 bits, while the other is compiled."""
    size, machine = float_bytes(folder), usable_memory()
    rate = memory_rate() if size * INT8_SHARE > LEAST_TIMED else 0.0
    chosen = checkpoint_quant(folder, machine, rate)
    why = four_bits_because(size, machine, rate) if chosen == FOUR_BITS else ""
    if why and later is not None and size * INT8_SHARE <= MOST_MEMORY * machine:
        wanted = Wanted(folder, name, cache, FOUR_BITS, lora)
        if is_good(wanted.target):
            mark_used(wanted.target)
            return wanted.target
        eight = compiled(Wanted(folder, name, cache, EIGHT_BITS, lora))
        compile_behind(wanted, later, f"{why}; 4 bits are chosen behind this bundle")
        return eight
    if why:
        print(f"{folder.name}: {why}; 4 bits are chosen, which takes long", file=sys.stderr, flush=True)
    return compiled(Wanted(folder, name, cache, chosen, lora))


def compile_behind(wanted: "Wanted", later: LaterCompilations, told: str) -> None:
    """Compile while another bundle serves, unless another process does or nobody can. told: why, for people."""
    log = wanted.target.with_name(f"{wanted.target.name}.log")
    try:
        wanted.cache.mkdir(parents=True, exist_ok=True)
        if not later.start(wanted.command(), lock_of(wanted.target), log):
            return
        remark = f"{told} (see {log}), and the next start serves it"
    except (BundleError, OSError) as error:
        reason = _unusable(wanted.cache, error) if isinstance(error, OSError) else error
        remark = f"nothing is compiled behind this bundle: {reason}"
    print(f"{wanted.name}: {remark}", file=sys.stderr, flush=True)


def _unusable(cache: Path, error: OSError) -> BundleError:
    return BundleError(f"the bundle cache {cache} cannot be used: {error.strerror or error}; cache_dir names another")


def cache_folder(setting: str) -> Path:
    """The folder that a setting names, the default one if empty. BundleError when it lies in a home that is none."""
    return files.expanded(setting) if setting else default_cache()


def default_cache() -> Path:
    """The platform's folder for files that can be made again. BundleError when it would be in a home that is none."""
    try:
        if sys.platform == "win32":
            caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            caches = Path.home() / "Library" / "Caches"
        else:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise BundleError("this account has no home folder: name a folder for the cache with cache_dir") from None
    return caches / "hexserve" / "bundles"


def bundle_key(folder: Path, arguments: tuple[str, ...]) -> str:
    """Names one compilation: the checkpoint's files, the arguments, and the compiler that would run."""
    compiler = compiler_stamps(Path(__file__).resolve().parents[1])
    facts = [installed_version("hexserve", "0"), FORMAT_VERSION, _stamps(folder), list(arguments), compiler]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def compiler_stamps(package: Path) -> list[tuple[str, int, int]]:
    """Path, size in bytes and modification time in ns of every Python file that a bundle's contents may depend on."""
    return files.stamps(package, (path for name in _COMPILER_FOLDERS for path in (package / name).rglob("*.py")))


def _stamps(source: Path) -> list[tuple[str, int, int]]:
    """Of a file's parts and of what reads images beside it, or of a folder, its parts' configs and templates."""
    if source.is_dir():
        return files.stamps(source, (*source.iterdir(), *source.glob("*/config.json"), *source.glob("*/*.jinja")))
    return files.stamps(source.parent, (*files.model_parts(source), *files.projectors_beside(source)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A bundle of a checkpoint: its name, its method of quantisation, and whether it takes adapters. more: options."""

    folder: Path
    name: str
    cache: Path
    quant: str
    lora: bool
    more: tuple[tuple[str, object], ...] = ()

    @property
    def target(self) -> Path:
        """Where in the cache it lies, or will."""
        key = bundle_key(self.folder, (self.quant, self.name, *["lora"] * self.lora, *map(repr, self.more)))
        return self.cache / f"{self.name}-{self.quant}-{key}"

    def command(self) -> list[str]:
        """Runs the compiler. BundleError where it is not installed."""
        if importlib.util.find_spec("onnx") is None:
            raise BundleError(f"{self.folder} has to be compiled first, which needs: {install_command('compile')}")
        # No quality: codes are chosen where there is something to choose.
        options = {"quant": self.quant, "name": self.name, "quality": None, **dict(self.more)}
        if self.lora:
            options["lora"] = True
        # The fields of `CompileArguments`, which stays unknown here: the compiler imports this folder.
        arguments = json.dumps({"source": str(self.folder), "output": str(self.target), **options})
        return module_command("engine.compile", END_WITH_INPUT, arguments)


def compiled(wanted: Wanted) -> Path:
    """The cached bundle of a checkpoint; the process that gets the lock first compiles it, other ones wait."""
    cache, target = wanted.cache, wanted.target
    mark_used(target)
    if is_good(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_of(target), lambda: _say_waiting(wanted.name)):
            if not is_good(target):
                shutil.rmtree(target, ignore_errors=True)  # a damaged one, possibly without its manifest
                _compile(wanted)
                remember(target, load_manifest(target), cache / COSTS_FOLDER)
        with suppress(OSError):  # such as another process that tidies up as well
            remove_unused(cache)
    except OSError as error:
        raise _unusable(cache, error) from error
    return target


def _say_waiting(name: str) -> None:
    print(f"another process compiles {name} already: waiting until it is done", file=sys.stderr, flush=True)


def _compile(wanted: Wanted) -> None:
    """Run the compiler with its progress on our stderr. Two that race are safe: the output is renamed into place."""
    command, folder, target = wanted.command(), wanted.folder, wanted.target
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


DEMO_PARITY_TOKENS = 800


@dataclass(frozen=True, slots=True)
class NamedSource:
    """What a source on the command line stands for. name: of the model, "" = the folder's."""

    folder: Path
    name: str
    parity_tokens: int


def named_source(text: str, cache: Path) -> NamedSource:
    """Of any name that `locate` knows, or of a shipped model, small enough for a check on much text. BundleError."""
    if text in SHIPPED:
        return NamedSource(SHIPPED[text](), text, DEMO_PARITY_TOKENS)
    found = locate(text, cache)
    return NamedSource(found.path, found.name, 0)
