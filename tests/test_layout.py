"""The fixed top level and the packages a newcomer expects."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {"server", "engine", "tools", "tests", "deploy", "docs", ".ci", ".github"}
FILES = {
    *("pyproject.toml", "Dockerfile", "README.md", "Makefile", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(".gitignore", ".dockerignore", ".editorconfig", ".pre-commit-config.yaml", "MANIFEST.in"),
}

# What asyncio and uvicorn call by its name.
CALLED_BY_NAME = {
    *("pipe_data_received", "pipe_connection_lost", "process_exited", "eof_received"),
    *("handle_starttag", "handle_startendtag", "handle_endtag", "handle_data"),
    *("send_400_response", "handle_exit", "main_loop", "emit", "repr_int"),
}


def test_top_level() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    top = {path.split("/")[0] for path in listed}
    assert top == FOLDERS | FILES


def test_expected_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = " ".join(project["dependencies"])
    for name in ("fastapi", "uvicorn", "pydantic", "numpy", "sse-starlette", "onnxruntime"):
        assert f"{name}>=" in always
    extras = project["optional-dependencies"]
    assert set(extras) == {"compile", "qnn", "hub", "speech", "otel", "bench", "ray", "dev"}
    assert any(line.startswith("onnxruntime-qnn>=2.7") for line in extras["qnn"])
    assert any(line.startswith("qai-hub-models-cli") for line in extras["hub"])


def test_nothing_of_ours_is_dead() -> None:
    """A function, class, field or constant whose name stands nowhere else: neither in the code nor in its tests."""
    listed = subprocess.run(
        ["git", "ls-files", "server", "engine", "tools", "tests", "deploy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in listed if path.endswith(".py")}
    said = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    trees = {path: ast.parse(text) for path, text in texts.items() if path.startswith(("server/", "engine/", "tools/"))}
    dead = [
        f"{path}: {name}"
        for path, tree in trees.items()
        for name in defined(tree) - fields_of_bodies(tree)
        if said[name] == 1 and name not in CALLED_BY_NAME
    ]
    assert dead == []


def fields_of_bodies(tree: ast.Module) -> set[str]:
    """Fields of request bodies: a client's request has them, the server may only have to accept them."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        statement.target.id
        for node in classes
        if any(isinstance(base, ast.Name) and base.id.endswith(("Body", "Answer")) for base in node.bases)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def defined(tree: ast.Module) -> set[str]:
    return set(definitions(tree))


def definitions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not (node.decorator_list or node.name.startswith("__")):  # a route; what Python calls
                yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
