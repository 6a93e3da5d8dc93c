"""Another folder of libraries, op packages, more options: what is taken, what is refused, where it arrives."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import BundleError
from engine.runtime.qnn.environment import (
    OPTIONS_VARIABLE,
    as_variables,
    configured_folder,
    configured_options,
    library_folder,
    library_name,
    library_path,
    package_folder,
)
from engine.runtime.qnn.provider import HtpTarget, compile_options, run_options

X_ELITE = HtpTarget(60, 73)
ROOT = Path(__file__).parents[3]
LOAD = """
import sys
from pathlib import Path
from engine.doctor.examination import small_graph
from engine.runtime.qnn.provider import HtpTarget, open_session, run_options
path = Path(sys.argv[1]) / "small.onnx"
path.write_bytes(small_graph())
open_session(path, run_options(HtpTarget(60, 73)) | {"enable_htp_fp16_precision": "1"}, {})
print("loaded:", *(line.split()[-1] for line in open("/proc/self/maps") if "libQnnHtp.so" in line))
"""


def test_settings_become_variables_and_win_over_inherited_ones() -> None:
    config = EngineConfig("x", qnn_options="a=1")
    assert {OPTIONS_VARIABLE: "b=2"} | as_variables(config) == {OPTIONS_VARIABLE: "a=1"}


def test_options_are_read_and_a_path_to_nothing_is_named() -> None:
    assert configured_options("a=1, b=2=3, libraries=/sdk/lib") == {"a": "1", "b": "2=3"}
    assert configured_options("backend_path=libQnnHtp.so") == {
        "backend_path": "libQnnHtp.so"
    }  # the loader looks for it
    with pytest.raises(BundleError, match="must look like key=value"):
        configured_options("burst")
    with pytest.raises(BundleError, match=r"HEXSERVE_QNN_OPTIONS: backend_path: there is no file /none/libQnnHtp\.so"):
        configured_options("backend_path=/none/libQnnHtp.so")


def test_library_names() -> None:
    assert library_name("QnnSystem", "win32") == "QnnSystem.dll"
    assert library_name("QnnSystem", "linux") == "libQnnSystem.so"


def test_a_folder_is_the_one_with_qnnhtp(tmp_path: Path) -> None:
    assert configured_folder({}) is None
    with pytest.raises(BundleError, match=rf"HEXSERVE_QNN_OPTIONS: libraries: there is no {library_name('QnnHtp')} in"):
        configured_folder({OPTIONS_VARIABLE: f"libraries={tmp_path}"})
    (tmp_path / library_name("QnnHtp")).touch()
    assert configured_folder({OPTIONS_VARIABLE: f"libraries={tmp_path}"}) == tmp_path


def test_op_packages_reach_the_provider_and_wrong_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libOps.so"
    library.touch()
    listed = f"Rope:{library}:RopeInterface:HTP;Norm:libOther.so:NormInterface"
    monkeypatch.setenv(OPTIONS_VARIABLE, f"op_packages={listed}")
    assert run_options(X_ELITE)["op_packages"] == listed.replace(";", ",")
    assert "op_packages" not in run_options(X_ELITE, extra="")  # the compiler's: its own binaries need none
    for wrong in ("Rope", f"Rope:{library}", f"Rope:{library}:I:HTP:more", f"Rope:{library}:", "a:b:c;oops"):
        with pytest.raises(BundleError, match="must look like type:path:interface"):
            configured_options(f"op_packages={wrong}")
    with pytest.raises(BundleError, match=r"HEXSERVE_QNN_OPTIONS: op_packages: there is no file /none/libOps\.so"):
        configured_options("op_packages=Rope:/none/libOps.so:RopeInterface")


def load(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A small graph on the provider, in a process of its own: libraries stay loaded."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_the_libraries_come_from_the_configured_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path / "qnn"
    folder.mkdir()
    package = package_folder().resolve()
    for name in map(library_name, ("QnnHtp", "QnnSystem")):
        shutil.copyfile(package / name, folder / name)
    needed = f"{package.name}.libs"  # the wheel's own C++ library, which QnnHtp looks for beside its folder
    (tmp_path / needed).symlink_to(package.with_name(needed))
    usual, other = load(tmp_path), load(tmp_path, **{OPTIONS_VARIABLE: f"libraries={folder}"})
    bare = f"backend_path={library_name('QnnHtp')}"
    found = load(tmp_path, **{OPTIONS_VARIABLE: bare, "LD_LIBRARY_PATH": str(folder)})
    for done, loaded in ((usual, package), (other, folder.resolve()), (found, folder.resolve())):
        assert done.returncode == 0, done.stderr
        (told,) = (line for line in done.stdout.splitlines() if line.startswith("loaded:"))  # the library prints too
        assert set(told.split()[1:]) == {str(loaded / library_name("QnnHtp"))}
    monkeypatch.setenv(OPTIONS_VARIABLE, f"libraries={folder}")
    assert library_folder() == folder
    assert compile_options(X_ELITE)["backend_path"] == str(folder / library_name("QnnHtp"))
    assert library_path("QnnSystem").parent == folder
    assert library_path("Genie").parent == package_folder()


def test_the_provider_is_asked_to_register_op_packages(tmp_path: Path) -> None:
    """A file that is no op package: the runtime's refusal shows that it was asked."""
    pytest.importorskip("onnxruntime_qnn")
    library = tmp_path / "libOps.so"
    library.touch()
    done = load(tmp_path, **{OPTIONS_VARIABLE: f"op_packages=Rope:{library}:RopeInterface:HTP"})
    assert done.returncode != 0
    assert "Failed to register op package" in done.stderr
