"""On which devices a model is served, and which bundles that takes."""

import importlib.util
import platform
from collections.abc import Callable, Collection
from pathlib import Path

from engine.bundle.manifest import MANIFEST_FILE, load_manifest
from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.files import is_gguf, is_regular, reading
from engine.genie.config import is_genie_folder
from engine.genie.speech import is_hub_speech
from engine.processes import install_command
from engine.sources.resolve import Wanted, compile_behind, compiled, is_good, locate, resolve_bundle
from engine.sources.retention import LaterCompilations

NPU, CPU, AUTO = "npu", "cpu", "auto"
BOTH = (f"{NPU},{CPU}", f"{CPU},{NPU}")
WORDS = ("", NPU, CPU, AUTO, *BOTH)
# The blocks of a GGUF file are kept where the NPU can hold them, which integer graphs cannot.
NPU_QUANT, NPU_QUANT_OF_GGUF = "w4a16", "w4"
NPU_OPTIONS = (("target", "x-elite"), ("rows", (1, 32, 128)), ("context", (1024, 4096)))


def devices_of(setting: str, name: str, names: Collection[str] = ()) -> str:
    """What the setting says of a model: NAME=DEVICES,... of those that are named, else of all. BundleError.
    chat=npu,cpu,embed=cpu -> "npu,cpu" for chat and "cpu" for embed. names: of all models; others are refused."""
    if "=" not in setting:
        return setting
    found: dict[str, str] = {}
    last = ""
    for part in (part.strip() for part in setting.split(",")):
        key, equals, value = part.rpartition("=")
        if equals:
            last = key.strip()
            found[last] = value
        elif not last:
            raise BundleError(f"devices {setting}: '{part}' stands before the first NAME=")
        else:
            found[last] += f",{part}"
    unknown = [key for key in found if key not in (name, *names)]
    if unknown:
        raise BundleError(f"devices: no model is called {unknown[0]}; NAME=SOURCE or --model-name gives a name")
    return found.get(name, "")


def bundles_for(
    devices: str,
    source: str,
    cache: Path,
    resolve: Callable[[], Path],
    later: LaterCompilations,
    alone: Collection[str] = (),
) -> tuple[Path, Path | None]:
    """The bundle of a model, and that for another device where two serve it. BundleError. devices: what the setting
    says of it. resolve: the bundle that the source is without the setting. later: compiles for an NPU that nobody asked
    for by name, while the CPU serves. alone: settings that two devices cannot honour."""
    words, other = _words(devices), other_bundle(devices, cache)
    is_made = words in (NPU, CPU, AUTO) and _is_for_npu(source, cache)
    if words == CPU and is_made:
        raise BundleError(f"devices is cpu, and {source} is made for the NPU; name its checkpoint or its other bundle")
    if words in ("", CPU) or is_made or (words == AUTO and not has_npu()):
        return resolve(), None
    if words == NPU:
        return compiled(_for_npu(source, cache, "lora" in alone)), None
    if alone:
        raise BundleError(f"devices is {devices}: {' and '.join(alone)} can be used on one device only")
    bundle = resolve()
    if words != AUTO:
        return bundle, other or compiled(_for_npu(source, cache))
    wanted = _for_npu(source, cache)
    if is_good(wanted.target):
        return bundle, compiled(wanted)
    # Choosing codes takes hours for a large model.
    compile_behind(wanted, later, "the CPU serves; a bundle for the NPU is compiled behind it")
    return bundle, None


def other_bundle(devices: str, cache: Path) -> Path | None:
    """The bundle that the setting names; None where it names devices. BundleError where it names neither."""
    if _words(devices) in WORDS:
        return None
    try:
        return resolve_bundle(devices, cache)
    except BundleError as error:
        raise BundleError(f"devices is npu, cpu, npu,cpu, auto or another bundle: {error}") from None


def _words(devices: str) -> str:
    return ",".join(part.strip().lower() for part in devices.split(","))


def _is_for_npu(source: str, cache: Path) -> bool:
    """Whether it is a bundle for the NPU, or what becomes one without a compilation. BundleError."""
    if source in SHIPPED:
        return False
    with reading(source):
        folder = locate(source, cache).path
        if is_regular(folder / MANIFEST_FILE):
            return load_manifest(folder).npu is not None
        return is_genie_folder(folder) or is_hub_speech(folder)


def has_npu() -> bool:
    """Whether this looks like a machine with a Hexagon NPU and what runs it."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    return is_arm and importlib.util.find_spec("onnxruntime_qnn") is not None


def _for_npu(source: str, cache: Path, lora: bool = False) -> Wanted:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        raise BundleError(f"devices: the NPU for {source} needs: {install_command('qnn')}")
    if source in SHIPPED:
        folder, name = SHIPPED[source](), source
    else:
        located = locate(source, cache)
        folder, name = located.path, located.name or located.path.resolve().stem
        if not is_gguf(folder) and not (folder / "config.json").is_file():
            raise BundleError(
                f"devices: {source} is no checkpoint that could be compiled for the NPU; name its other bundle instead"
            )
    # The emulator needs a binary for each variant, a device is better off with one for all.
    more = (*NPU_OPTIONS, ("share_weights", has_npu()))
    return Wanted(folder, name, cache, NPU_QUANT_OF_GGUF if is_gguf(folder) else NPU_QUANT, lora, more)
