"""The files of a bundle made of a Genie folder: wrappers, tokenizer, template and manifest beside the binaries. The
provider takes binaries only from the wrapper's own folder, so they are linked there, or copied where links fail."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.bundle.manifest import FORMAT_VERSION, FileEntry, describe_file, save_manifest
from engine.errors import BundleError
from engine.files import stamps
from engine.genie.read import GenieBundle
from engine.genie.text import TEMPLATE_FILE, TOKENIZER_FILE
from engine.runtime.qnn.binary import BinaryInfo, write_wrapper
from engine.runtime.qnn.reader import describe_binary, runtime_version

SPARE_BYTES = 64 * 1024 * 1024
CONVERTERS = ("genie", "runtime/qnn", "speech")  # folders of `engine` whose code makes a bundle of a folder


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What the conversion asks of the machine; tests put their own in. describe: tensors of a binary."""

    describe: Callable[[Path], BinaryInfo]
    runtime: str


def machine_tools(cache: Path) -> Toolbox:
    """What the installed QNN libraries say; descriptions of binaries are kept in `cache`."""
    return Toolbox(lambda path: describe_binary(path, cache), runtime_version())


def conversion_key(folder: Path) -> str:
    """Names one conversion: the folder's files and the code that converts."""
    package = Path(__file__).resolve().parents[1]
    places = (folder, *(package / name for name in CONVERTERS))
    found = [stamps(place, (path for path in place.rglob("*") if path.suffix != ".pyc")) for place in places]
    facts = [FORMAT_VERSION, str(folder.resolve()), *found]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def write_converted(bundle: GenieBundle, folder: Path) -> None:
    """Write the bundle's files into an empty folder. BundleError when there is no room, OSError as the disk says."""
    place_binaries(bundle.binaries, folder)
    for wrapper in bundle.wrappers:
        graph = wrapper.graph
        write_wrapper(folder / graph.file, wrapper.nodes, graph.inputs, graph.outputs, wrapper.between)
    if isinstance(bundle.text.tokenizer, Path):
        shutil.copyfile(bundle.text.tokenizer, folder / TOKENIZER_FILE)
    else:
        (folder / TOKENIZER_FILE).write_text(bundle.text.tokenizer, encoding="utf-8")
    if bundle.text.template is not None:
        (folder / TEMPLATE_FILE).write_text(bundle.text.template, encoding="utf-8", newline="\n")
    files: dict[str, FileEntry] = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    save_manifest(folder, msgspec.structs.replace(bundle.manifest, files=files))


def place_binaries(binaries: Mapping[str, Path], folder: Path, link: Callable[[Path, Path], None] = os.link) -> None:
    """Put every binary into the folder under its name: a hard link where the file system allows, else a copy. A
    symbolic link will not do: the bundle's files must lie inside it. BundleError when there is no room to copy."""
    for name, source in binaries.items():
        target = folder / name
        try:
            link(source.resolve(), target)
            continue
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise
        size, free = source.stat().st_size, shutil.disk_usage(folder).free
        if free < size + SPARE_BYTES:
            raise BundleError(
                f"{name} ({size / 1e9:.2f} GB) must be copied into {folder.parent}, which has {free / 1e9:.2f} GB "
                "left: choose a cache on the file system of the bundle, where links are enough"
            )
        shutil.copyfile(source, target)
