"""The compiler's modules stand in an order: none imports, directly or through others, what imports it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import engine.compile

FOLDER = Path(engine.compile.__path__[0])


def test_no_module_of_the_compiler_imports_itself_in_a_circle() -> None:
    files = {name_of(path): path for path in FOLDER.rglob("*.py")}
    graph = {name: imported(path) & files.keys() for name, path in files.items()}
    assert len(tuple(TopologicalSorter(graph).static_order())) == len(files)  # CycleError names a circle


def name_of(path: Path) -> str:
    parts = ("engine", "compile", *path.relative_to(FOLDER).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Also what is imported inside functions."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
