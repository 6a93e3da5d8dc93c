"""The first moments of the command."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
