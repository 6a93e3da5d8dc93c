"""onnxruntime's QNN provider: registering the library, provider options as data, sessions that never fall back.
Facts behind the options: onnxruntime-qnn 2.x is a plugin, so its devices come from `ort.get_ep_devices()`. On a machine
without an NPU its one device is of type CPU: the HTP emulator, inside the same library."""

import importlib
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bundle.manifest import Manifest
from engine.errors import BundleError
from engine.runtime.onnx_library import ort
from engine.runtime.qnn.environment import (
    MISSING,
    OPTIONS_VARIABLE,
    PACKAGE,
    configured_folder,
    configured_options,
    library_name,
)
from engine.runtime.sessions import Provider

log = logging.getLogger("hexserve.worker")

EP_NAME = "QNNExecutionProvider"
NPU, EMULATOR = "NPU", "HTP emulator"
ARM64 = ("arm64", "aarch64")
EMULATOR_REFUSES = {"enable_htp_shared_memory_allocator", "htp_performance_mode", "rpc_control_latency"}
# Sessions of one process that load the same binary share its graphs.
SHARE, STOP_SHARING = "ep.share_ep_contexts", "ep.stop_share_ep_contexts"


@dataclass(frozen=True, slots=True)
class HtpTarget:
    """The chip a binary is for, in Qualcomm's numbers: X Elite is soc_model 60 with a Hexagon v73."""

    soc_model: int
    htp_arch: int


def is_device(machine: str | None = None) -> bool:
    """Whether this machine may have a real NPU: Windows or Linux on ARM64. Anything else emulates."""
    return (platform.machine() if machine is None else machine).lower() in ARM64


def device_name(machine: str | None = None) -> str:
    return NPU if is_device(machine) else EMULATOR


def compile_options(target: HtpTarget) -> dict[str, str]:
    """Provider options for making a binary. Half precision needs the chip to be named; mode 3 optimises most."""
    return {
        "backend_path": _backend(),
        "soc_model": str(target.soc_model),
        "htp_arch": str(target.htp_arch),
        "enable_htp_fp16_precision": "1",
        "htp_graph_finalization_optimization_mode": "3",
    }


def run_options(target: HtpTarget, machine: str | None = None, extra: str | None = None) -> dict[str, str]:
    """Provider options for running a binary. BundleError when `extra` or the op packages cannot be used here.
    A device knows its own chip; the emulator has to be told. Performance votes exist on devices only. extra:
    'key=value,...' for experiments; None = HEXSERVE_QNN_OPTIONS."""
    added = configured_options(os.environ.get(OPTIONS_VARIABLE, "") if extra is None else extra)
    if is_device(machine):
        return {"htp_performance_mode": "burst", "rpc_control_latency": "100"} | added
    if refused := EMULATOR_REFUSES & added.keys():
        raise BundleError(f"{OPTIONS_VARIABLE}: {min(refused)} works on devices only, this is the {EMULATOR}")
    return {"soc_model": str(target.soc_model), "htp_arch": str(target.htp_arch)} | added


def open_session(path: Path, options: Mapping[str, str], config: Mapping[str, str]) -> ort.InferenceSession:
    """A session wholly on QNN: what it cannot take is an error, never a silent CPU run."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    sleeping = {f"session.{kind}_op.allow_spinning": "0" for kind in ("intra", "inter")}
    for key, value in {"session.disable_cpu_ep_fallback": "1", **sleeping, **config}.items():
        settings.add_session_config_entry(key, value)
    settings.add_provider_for_devices(qnn_devices()[:1], {"backend_path": _backend(), **options})
    session = ort.InferenceSession(str(path), settings)
    session.disable_fallback()
    return session


def qnn_devices() -> list[Any]:
    """The provider's devices; registers its library the first time. BundleError when it is missing or cannot load."""
    if found := [device for device in ort.get_ep_devices() if device.ep_name == EP_NAME]:
        return found
    try:
        ort.register_execution_provider_library(EP_NAME, str(_package().get_library_path()))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise BundleError(f"the QNN provider cannot be loaded: {str(error)[:300]}") from error
    if found := [device for device in ort.get_ep_devices() if device.ep_name == EP_NAME]:
        return found
    raise BundleError("the QNN provider is installed but offers no device on this machine; run `hexserve doctor`")


def _package() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise BundleError(f"{MISSING} ({error})") from error


def _backend() -> str:
    folder = configured_folder(os.environ)
    return str(folder / library_name("QnnHtp") if folder is not None else _package().get_qnn_htp_path())


def qnn_provider(manifest: Manifest) -> Provider:
    """The provider of an NPU bundle. BundleError when this machine cannot run its binaries (see `check_machine`)."""
    check_machine(manifest)
    assert manifest.npu is not None
    options = run_options(HtpTarget(manifest.npu.soc_model, manifest.npu.htp_arch))
    library = Path(_package().get_library_path()).read_bytes()  # it takes any name, and ignores those it does not know
    for name in (name for name in options if name.encode() not in library):
        log.warning("%s: the QNN provider seems to have no option %s and may ignore it", OPTIONS_VARIABLE, name)
    last = manifest.graphs[-1].file
    shared = {graph.file for graph in manifest.graphs} if manifest.npu.shared else set()  # a binary of images is alone

    def open_graph(path: Path) -> ort.InferenceSession:
        entries = (SHARE, STOP_SHARING)[: 1 + (path.name == last)] if path.name in shared else ()
        return open_session(path, options, dict.fromkeys(entries, "1"))

    return Provider(device_name(), open_graph)


def check_machine(manifest: Manifest, machine: str | None = None) -> None:
    """BundleError for what would kill the process: a binary of several graphs in the emulator."""
    if manifest.npu is None:
        raise BundleError(f"the manifest says target {manifest.target!r} but not which chip its binaries are for")
    if manifest.npu.shared and not is_device(machine):
        raise BundleError(
            f"{manifest.npu.shared[0]} holds {len(manifest.npu.binaries[manifest.npu.shared[0]])} graphs that share "
            f"their weights. Such a binary runs on an NPU only; the {EMULATOR} of this machine cannot load it. "
            "Compile again with --one-graph-per-binary to run it here"
        )
