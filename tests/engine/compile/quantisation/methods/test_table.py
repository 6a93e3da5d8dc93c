"""A method of quantisation is one file and its rows: nothing else of the compiler knows one by name."""

import ast
from pathlib import Path

import engine.compile
from engine.compile.arguments import Quant
from engine.compile.pipeline import PIPELINES
from engine.compile.plan import TAKEN
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import METHODS, quants_with

COMPILER = Path(engine.compile.__path__[0])


def test_every_name_has_its_row() -> None:
    assert set(METHODS) == set(Quant)
    assert all(method.quant is quant for quant, method in METHODS.items())


def test_no_other_file_names_a_method() -> None:
    """Beside the table's folder only the list of names itself, which also holds the defaults."""
    wrong = [
        f"{path.relative_to(COMPILER)}:{node.lineno}"
        for path in COMPILER.rglob("*.py")
        if path.parent.name != "methods" and path.name != "arguments.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Quant"
    ]
    assert wrong == []


def test_every_method_a_target_takes_has_its_stages() -> None:
    taken = {(is_npu, kind) for is_npu, kinds in TAKEN.items() for kind in kinds}
    assert taken == set(PIPELINES)
    assert set(quants_with(*Activations)) == set(Quant)
