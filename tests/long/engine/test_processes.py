"""A user's working folder changes nothing: whatever lies in it, our commands and their children import what is ours."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.grammar.compiler_pool import GrammarCompilerPool, compiler_command
from engine.grammar.spec import GrammarSpec, Regex
from engine.processes import PACKAGE_ROOT, child_environment, graph_memory, import_path, module_command, own_group

ROOT = Path(__file__).parents[3]
HOSTILE = (
    *("engine", "server", "numpy", "msgspec", "onnx", "onnxruntime", "tokenizers", "typer"),
    *("sitecustomize", "usercustomize"),
)
STARTS = {"run", "Popen", "create_subprocess_exec", "subprocess_exec"}
# What the console script does; the package is found as in a checkout that is not installed.
HEXSERVE = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.__main__ import main; sys.exit(main())"
GUARD_S = 300


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of modules with the names of ours and of our packages; each makes a file when it is imported."""
    folder = tmp_path / "working"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r} + ' ')\n")
    return folder


def imported(hostile: Path) -> str:
    """Names of the hostile modules that were imported."""
    marker = hostile.with_name("imported")
    return marker.read_text() if marker.exists() else ""


def run(
    command: list[str], folder: Path, environment: Mapping[str, str], typed: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env=environment, input=typed, capture_output=True, encoding="utf-8", timeout=GUARD_S,
        check=False,
    )  # fmt: skip


def hexserve(*arguments: str, folder: Path, typed: str = "") -> "subprocess.CompletedProcess[str]":
    """The command as a user has it, with nothing in the environment that would help."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEXSERVE"))}
    environment |= {"HEXSERVE_CACHE_DIR": str(folder.with_name("cache")), "PYTHONIOENCODING": "utf-8"}
    return run([sys.executable, "-P", "-c", HEXSERVE, *arguments], folder, environment, typed)


def test_compile_and_inspect_in_a_hostile_folder(hostile: Path, tiny_checkpoint: Path) -> None:
    made = hexserve("compile", str(tiny_checkpoint), "-o", "bundle", "--quant", "fp32", folder=hostile)
    assert made.returncode == 0, made.stderr
    drawn = hexserve("inspect", "bundle", folder=hostile)
    assert drawn.returncode == 0 and "tiny" in drawn.stdout, drawn.stderr
    assert imported(hostile) == ""


def test_a_bundle_is_compiled_served_and_measured_in_a_hostile_folder(hostile: Path, tiny_checkpoint: Path) -> None:
    """The bench starts a server, which starts the compiler, and then the worker."""
    load = ("--clients", "1", "--requests-per-client", "1", "--prompt-tokens", "8", "--max-tokens", "2")
    done = hexserve("bench", str(tiny_checkpoint), *load, folder=hostile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert imported(hostile) == ""


def test_chat_in_a_hostile_folder(hostile: Path, free_bundle: Path) -> None:
    done = hexserve("chat", str(free_bundle), folder=hostile, typed="/max 2\nHello\n/quit\n")
    assert done.returncode == 0 and done.stdout, done.stderr
    assert imported(hostile) == ""


def test_doctor_in_a_hostile_folder(hostile: Path) -> None:
    done = hexserve("doctor", folder=hostile)
    assert "ok   CPU provider" in done.stdout, done.stdout + done.stderr  # found by a child
    assert imported(hostile) == ""


async def test_a_grammar_is_compiled_in_a_hostile_folder(
    hostile: Path, free_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    pool = GrammarCompilerPool(compiler_command(free_bundle, load_manifest(free_bundle)))
    try:
        assert await pool.compile(GrammarSpec(Regex("a")), "guided_regex")
    finally:
        await pool.close()
    assert imported(hostile) == ""


def sources() -> Mapping[str, ast.Module]:
    files = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def modules_we_start() -> list[str]:
    """First argument of every `module_command` in the source."""
    calls = [node for tree in sources().values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted({str(ast.literal_eval(call.args[0])) for call in calls if name_of(call) == "module_command"})


def test_nobody_else_builds_a_command_line_or_an_environment() -> None:
    """`sys.executable` stands in one file, and every start passes the environment made there."""
    wrong = []
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "executable" and file != "engine/processes.py":
                wrong.append(f"{file}:{node.lineno} builds a command line")
            if not (isinstance(node, ast.Call) and name_of(node) in STARTS and takes_a_process(node)):
                continue
            given = {word.arg: word.value for word in node.keywords}
            environment = given.get("env")
            if not (isinstance(environment, ast.Call) and name_of(environment) == "child_environment"):
                wrong.append(f"{file}:{node.lineno} starts a process in another environment")
    assert wrong == []
    assert len(modules_we_start()) >= 8


def takes_a_process(call: ast.Call) -> bool:
    """Whether a call of that name starts a process: `asyncio.run` and `session.run` do not."""
    owner = getattr(call.func, "value", None)
    return name_of(call) != "run" or (isinstance(owner, ast.Name) and owner.id == "subprocess")


@pytest.mark.parametrize("module", modules_we_start())
def test_every_child_is_ours(module: str, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    done = run([*module_command(module), "no", "such", "thing"], hostile, child_environment())
    assert "No module named" not in done.stderr
    assert imported(hostile) == ""


def test_a_child_finds_what_the_user_s_path_names(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a relative entry, and from another folder; an empty entry is no invitation to the working folder."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "precious.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}own{os.pathsep}")
    command = [sys.executable, "-P", "-c", "import engine, numpy, precious; print(engine.__file__)"]
    done = run(command, hostile, child_environment({"MORE": "1"}))
    assert Path(done.stdout.strip()) == PACKAGE_ROOT / "engine" / "__init__.py", done.stderr
    assert imported(hostile) == ""
    assert child_environment({"MORE": "1"})["MORE"] == "1"


def test_a_child_imports_the_package_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one is installed: here a copy lies elsewhere."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    copy = tmp_path / "engine"
    copy.mkdir()
    for name in ("__init__.py", "processes.py"):
        shutil.copy(PACKAGE_ROOT / "engine" / name, copy)
    code = (
        f"import subprocess, sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from engine.processes import child_environment;"
        "child = [sys.executable, '-P', '-c', 'import engine; print(engine.__file__)'];"
        "subprocess.run(child, env=child_environment(), check=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == copy / "__init__.py"


def test_a_site_folder_is_not_put_before_the_standard_library() -> None:
    root, theirs = Path("/packages"), Path("/theirs")
    assert import_path(root, ["", str(theirs)], []) == [str(root), str(theirs)]
    assert import_path(root, ["", str(theirs)], [root]) == [str(theirs)]
    assert import_path(root, [""], [root]) == []


def test_both_platforms_keep_terminal_signals_from_a_group_of_its_own() -> None:
    assert own_group("linux") == own_group("darwin") == {"start_new_session": True}
    flag = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200)
    assert own_group("win32") == {"creationflags": flag} == {"creationflags": 0x200}


def test_a_worker_on_linux_asks_glibc_for_huge_pages_unless_the_user_has_tuned_it() -> None:
    wanted = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert graph_memory({}, "linux") == wanted
    assert graph_memory({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, "linux") == graph_memory({}, "win32") == {}
