"""QNN settings as an environment variable: provider options, op packages, the folder of libraries.
Several kinds of processes load the libraries, and all of them inherit the environment. The server's setting of the same
name becomes this variable in its worker."""

import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import BundleError
from engine.files import expanded
from engine.processes import install_command, installed_version

OPTIONS_VARIABLE = "HEXSERVE_QNN_OPTIONS"
OP_PACKAGES = "op_packages"  # an option of the provider
LIBRARIES = "libraries"  # ours: a folder


def as_variables(config: EngineConfig) -> dict[str, str]:
    """The setting as a variable; an empty one is there too, so that it wins over an inherited one."""
    return {OPTIONS_VARIABLE: config.qnn_options}


def library_name(stem: str, platform: str = sys.platform) -> str:
    """QnnSystem -> libQnnSystem.so, or QnnSystem.dll on Windows."""
    return f"{stem}.dll" if platform == "win32" else f"lib{stem}.so"


def configured_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder to take QNN libraries from, None = the package's. BundleError when it lacks QnnHtp."""
    text = _given(environment.get(OPTIONS_VARIABLE, "")).get(LIBRARIES, "")
    if not text:
        return None
    folder, needed = expanded(text), library_name("QnnHtp")
    if not (folder / needed).is_file():
        raise BundleError(f"{OPTIONS_VARIABLE}: {LIBRARIES}: there is no {needed} in {folder}")
    return folder.absolute()


def configured_options(text: str) -> dict[str, str]:
    """What the provider is given of 'a=1,b=2'. BundleError for anything else, or when a path leads to nothing."""
    options = _given(text)
    options.pop(LIBRARIES, None)
    _check_path(f"{OPTIONS_VARIABLE}: backend_path", options.get("backend_path", ""))
    if OP_PACKAGES in options:
        options[OP_PACKAGES] = _op_packages(options[OP_PACKAGES])
    return options


def _given(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    for key, equals, _ in pairs:
        if not equals or not key.strip():
            raise BundleError(f"{OPTIONS_VARIABLE} must look like key=value,key=value, it is {text!r}")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _op_packages(text: str) -> str:
    """What the provider takes. BundleError for what it would silently leave out.
    type:path:interface[:target], separated by semicolons. type: of the operator; path: of the library; interface: its
    function that QNN asks for the package; target: CPU or HTP."""
    origin = f"{OPTIONS_VARIABLE}: {OP_PACKAGES}"
    for item in text.split(";"):
        fields = [field.strip() for field in item.split(":")]
        if len(fields) not in (3, 4) or not all(fields):
            raise BundleError(f"{origin} must look like type:path:interface[:target];..., not {item!r}")
        _check_path(origin, fields[1])
    return text.replace(";", ",")


def _check_path(origin: str, path: str) -> None:
    """A bare file name is left to the system's loader, which looks where it always looks."""
    if Path(path).name != path and not Path(path).is_file():
        raise BundleError(f"{origin}: there is no file {path}")


PACKAGE = "onnxruntime_qnn"
DISTRIBUTION = "onnxruntime-qnn"
MISSING = f"this needs Qualcomm's runtime libraries: {install_command('qnn')}"


def library_folder() -> Path:
    """The folder with the QNN libraries, the configured one or the package's; BundleError when there is none."""
    return configured_folder(os.environ) or package_folder()


def package_folder() -> Path:
    """The package's folder; BundleError when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BundleError(MISSING)
    return Path(spec.origin).parent


def library_path(stem: str) -> Path:
    """Path of a library such as QnnSystem or Genie: what a configured folder lacks, the package has, or BundleError."""
    configured, name = configured_folder(os.environ), library_name(stem)
    if configured is not None and (configured / name).is_file():
        return configured / name
    if found := sorted(package_folder().rglob(name)):
        return found[0]
    raise BundleError(f"{DISTRIBUTION} {package_version()} in {package_folder()} has no {name}")


def package_version() -> str:
    return installed_version(DISTRIBUTION)


FAILURES = Path(__file__).with_name("failures.toml")


def explain(text: str) -> str:
    """The sentence for a known failure, '' for an unknown one."""
    for known in tomllib.loads(FAILURES.read_text("utf-8"))["failures"]:
        if re.search(known["pattern"], text, re.IGNORECASE | re.DOTALL):
            return str(known["meaning"]).replace("{install}", install_command("qnn"))
    return ""
