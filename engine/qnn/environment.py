"""QNN settings as environment variables: the folder of libraries, op packages, provider options.

Several kinds of processes load the libraries, and all of them inherit environment variables. The server's settings of
the same names become these variables in its worker.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import BundleError

OPTIONS_VARIABLE = "HEXSERVE_QNN_OPTIONS"
FOLDER_VARIABLE = "HEXSERVE_QNN_LIBRARY_DIR"
PACKAGES_VARIABLE = "HEXSERVE_QNN_OP_PACKAGES"
VARIABLES = (OPTIONS_VARIABLE, FOLDER_VARIABLE, PACKAGES_VARIABLE)


def as_variables(config: EngineConfig) -> dict[str, str]:
    """The settings as variables; an empty one is there too, so that it wins over an inherited one."""
    return {
        OPTIONS_VARIABLE: config.qnn_options,
        FOLDER_VARIABLE: config.qnn_library_dir,
        PACKAGES_VARIABLE: config.qnn_op_packages,
    }


def library_name(stem: str, platform: str = sys.platform) -> str:
    """QnnSystem -> libQnnSystem.so, or QnnSystem.dll on Windows."""
    return f"{stem}.dll" if platform == "win32" else f"lib{stem}.so"


def configured_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder to take QNN libraries from, None = the package's. BundleError when it lacks QnnHtp."""
    text = environment.get(FOLDER_VARIABLE, "")
    if not text:
        return None
    folder, needed = Path(text).expanduser(), library_name("QnnHtp")
    if not (folder / needed).is_file():
        raise BundleError(f"{FOLDER_VARIABLE}: there is no {needed} in {folder}")
    return folder.absolute()


def configured_options(text: str) -> dict[str, str]:
    """'a=1,b=2' as a dictionary. BundleError for anything else, or when backend_path is a path to nothing."""
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    for key, equals, _ in pairs:
        if not equals or not key.strip():
            raise BundleError(f"{OPTIONS_VARIABLE} must look like key=value,key=value, it is {text!r}")
    options = {key.strip(): value.strip() for key, _, value in pairs}
    _check_path(f"{OPTIONS_VARIABLE}: backend_path", options.get("backend_path", ""))
    return options


def configured_op_packages(environment: Mapping[str, str]) -> str:
    """The provider's `op_packages`, '' for none. BundleError for what the provider would silently leave out.

    type:path:interface[:target], separated by commas. type: of the operator; path: of the library; interface: its
    function that QNN asks for the package; target: CPU or HTP.
    """
    text = environment.get(PACKAGES_VARIABLE, "")
    for item in filter(None, text.split(",")):
        fields = [field.strip() for field in item.split(":")]
        if len(fields) not in (3, 4) or not all(fields):
            raise BundleError(f"{PACKAGES_VARIABLE} must look like type:path:interface[:target],..., not {item!r}")
        _check_path(PACKAGES_VARIABLE, fields[1])
    return text


def _check_path(origin: str, path: str) -> None:
    """A bare file name is left to the system's loader, which looks where it always looks."""
    if Path(path).name != path and not Path(path).is_file():
        raise BundleError(f"{origin}: there is no file {path}")
