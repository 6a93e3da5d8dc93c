"""On which devices a model is served, and which bundles that takes."""

import importlib.util
import platform
from collections.abc import Callable, Collection
from pathlib import Path

from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.files import GGUF_SUFFIX
from engine.processes import install_command
from engine.sources.fetched import locate
from engine.sources.resolve import Wanted, compiled, resolve_bundle

NPU, CPU, AUTO = "npu", "cpu", "auto"
BOTH = (f"{NPU},{CPU}", f"{CPU},{NPU}")
NPU_QUANT = "w4a16"
NPU_OPTIONS = (("target", "x-elite"), ("rows", (1, 32, 128)), ("context", (1024, 4096)))


def devices_of(setting: str, name: str, names: Collection[str] = ()) -> str:
    """What the setting says of a model: NAME=DEVICES,... of those that are named, else of all. BundleError.

    chat=npu,cpu,embed=cpu -> "npu,cpu" for chat and "cpu" for embed. names: of all models; one that is none is refused.
    """
    if "=" not in setting:
        return setting
    found: dict[str, str] = {}
    last = ""
    for part in (part.strip() for part in setting.split(",")):
        key, equals, value = part.rpartition("=")
        if equals:
            last, found[key] = key, value
        elif not last:
            raise BundleError(f"devices {setting}: '{part}' stands before the first NAME=")
        else:
            found[last] += f",{part}"
    unknown = [key for key in found if key not in (name, *names)]
    if unknown:
        raise BundleError(f"devices: no model is called {unknown[0]}; NAME=SOURCE or --model-name gives a name")
    return found.get(name, "")


def bundles_for(devices: str, source: str, cache: Path, resolve: Callable[[], Path]) -> tuple[Path, Path | None]:
    """The bundle of a model, and that for another device where two serve it. BundleError.

    devices: what the setting says of it. resolve: the bundle that the source is without the setting.
    """
    if devices == AUTO:
        devices = BOTH[0] if has_npu() else ""
    if devices == NPU:
        return _for_npu(source, cache), None
    if devices in BOTH:
        return resolve(), _for_npu(source, cache)
    if devices in ("", CPU):
        return resolve(), None
    found = resolve()
    try:
        return found, resolve_bundle(devices, cache)
    except BundleError as error:
        raise BundleError(f"devices is npu, cpu, npu,cpu, auto or another bundle: {error}") from None


def has_npu() -> bool:
    """Whether this looks like a machine with a Hexagon NPU and what runs it."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    return is_arm and importlib.util.find_spec("onnxruntime_qnn") is not None


def _for_npu(source: str, cache: Path) -> Path:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        raise BundleError(f"devices: the NPU for {source} needs: {install_command('qnn')}")
    folder, name = _checkpoint(source, cache)
    # The emulator needs a binary for each variant, a device is better off with one for all.
    more = (*NPU_OPTIONS, ("share_weights", has_npu()))
    return compiled(Wanted(folder, name, cache, NPU_QUANT, False, more))


def _checkpoint(source: str, cache: Path) -> tuple[Path, str]:
    """What can be compiled, and the model's name."""
    if source in SHIPPED:
        return SHIPPED[source](), source
    located = locate(source, cache)
    if located.path.suffix != GGUF_SUFFIX and not (located.path / "config.json").is_file():
        raise BundleError(
            f"devices: {source} is no checkpoint that could be compiled for the NPU; name its other bundle instead"
        )
    return located.path, located.name or located.path.resolve().stem
