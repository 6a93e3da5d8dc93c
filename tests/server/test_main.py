"""The first moments of the command: Ctrl-C, and whether its two packages belong together."""

import os
import subprocess
import sys
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from server.__main__ import foreign_engine

ROOT = Path(__file__).parents[2]
# Ctrl-C at the import of one module, as it may come in the first tenth of a second.
INTERRUPTED_IMPORT = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["hexserve", "inspect", "/nowhere"]
{start}
"""
AS_MODULE = 'runpy.run_module("server", run_name="__main__")'
AS_SCRIPT = "import server.__main__; server.__main__.main()"


@pytest.mark.parametrize("start", [AS_MODULE, AS_SCRIPT])
@pytest.mark.parametrize("module", ["server.commands", "typer", "server.settings", "rich.console"])
def test_ctrl_c_while_modules_load_is_no_traceback(module: str, start: str) -> None:
    code = INTERRUPTED_IMPORT.format(module=module, start=start)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_console_script_starts_where_nothing_is_imported_yet() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"hexserve": "server.__main__:main"}
    code = "import sys; import server.__main__; print(sorted(n for n in sys.modules if n.startswith('server')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['server', 'server.__main__']\n"


@pytest.mark.parametrize("name", ["engine.py", "engine/__init__.py"])
def test_another_engine_is_one_sentence_and_never_imported(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "server", "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: hexserve lies in ") and str(file) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "imported").exists()


def test_what_lies_beside_it_is_ours(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    ours = ModuleSpec("engine", None, origin=str(tmp_path / "engine" / "__init__.py"))
    assert foreign_engine(ours, tmp_path) == ""
    assert "imported from nowhere" in foreign_engine(None, tmp_path)
    namespace = ModuleSpec("engine", None, origin=None, is_package=True)
    assert "imported from nowhere" in foreign_engine(namespace, tmp_path)
