"""The installers: `install.sh` from an empty home with uv or Python alone; `install.ps1` as far as Linux can tell."""

import re
import subprocess
import sys
from pathlib import Path

from tests.clients.environments import program_from_pypi, python_with
from tests.deploy.test_install import DEPLOY, ROOT, folder_of, install, posix

UV = "uv==0.13.9"
GRAMMAR = "tree-sitter==0.26.1\ntree-sitter-powershell==0.26.4\n"
FAULTS = """
import sys, tree_sitter, tree_sitter_powershell
parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
print(*[path for path in sys.argv[1:] if parser.parse(open(path, "rb").read()).root_node.has_error])
"""


@posix
def test_from_an_empty_home_to_an_answer(tmp_path: Path) -> None:
    """With uv; then with Python alone, which updates what is there."""
    alone = folder_of(tmp_path / "alone", python3=sys.executable)
    with_uv = folder_of(tmp_path / "with uv", python3=sys.executable, uv=program_from_pypi("uv", UV))
    for programs in (with_uv, alone):
        done = install(tmp_path, programs)
        assert done.returncode == 0, done.stderr
        command = tmp_path / ".local" / "bin" / "hexserve"
        assert f"Try: {command} run smollm2" in done.stdout
        asked = subprocess.run(
            [command, "run", "demo"],
            input="What is the capital of France?\n", capture_output=True, text=True, check=False, cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": str(programs)},
        )  # fmt: skip
        assert asked.returncode == 0 and "Paris" in asked.stdout, asked.stderr


def test_every_powershell_script_parses(tmp_path: Path) -> None:
    """By another project's grammar: PowerShell itself comes from no package index."""
    page = (ROOT / "docs" / "quickstart" / "windows.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```powershell\n(.*?)```", page, re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.ps1").write_text(block, encoding="utf-8")
    broken = tmp_path / "broken.ps1"
    broken.write_text("if ($true) { Write-Output 'a'\n", encoding="utf-8")
    scripts = [*sorted(tmp_path.glob("*.ps1")), *sorted(DEPLOY.glob("*.ps1"))]
    assert len(scripts) > 7
    done = subprocess.run(
        [python_with("powershell", GRAMMAR), "-c", FAULTS, *scripts], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(broken)]
