"""Draws a seeded sample of mutants and writes them as JSON. Runs where cosmic-ray is installed; changes no file.

`python tests/mutants/draw.py SEED COUNT FILE`: places are drawn first and then what is done there, so that a place
with many possible changes is not drawn more often. What is drawn of a line depends on the line and the seed, so that an
edit elsewhere hardly changes the sample.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[2]
MEASURED = (
    *(f"engine/{name}" for name in ("core", "runtime", "speculation", "sampling", "text")),
    "engine/grammar/masks.py",
    "server/generation",
    "server/middleware",
)
# What needs a device, what runs in a process of its own, and what only checks.
LEFT_OUT = ("qnn", "renderer", "core/checks")
STOCK = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_Gt", "LtE_Gt", "Gt_Lt", "GtE_Lt", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Mod_FloorDiv", "BitAnd_BitOr", "LShift_RShift")),
    *(f"ReplaceUnaryOperator_{pair}" for pair in ("USub_UAdd", "Delete_Not", "Delete_Invert")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "NumberReplacer"),
)


class Unmade(Operator):  # type: ignore[misc]
    """A call, or a change of something that exists, is left out."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Statements inside functions that are not the first binding of a name."""
        if node.type == "simple_stmt" and parso.tree.search_ancestor(node, "funcdef") is not None:
            statement = node.children[0]
            is_call = statement.type in ("atom_expr", "await_expr")
            if is_call or (statement.type == "expr_stmt" and not self._binds(statement)):
                yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`pass` in its place."""
        left_out = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", left_out.start_pos, left_out.get_first_leaf().prefix)
        return node

    @staticmethod
    def _binds(statement: Any) -> bool:
        target, assigned = statement.children[:2]
        return target.type in ("name", "testlist_star_expr") and getattr(assigned, "value", "") in ("=", "")

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


class Unreturned(Operator):  # type: ignore[misc]
    """A function returns None instead of what it found."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        """Returns with a value other than None."""
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`return None`."""
        node.children[1] = parso.python.tree.Name("None", node.children[1].start_pos, " ")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the line where it begins, that line before and after, and the whole changed text."""

    path: str
    line: int
    before: str
    after: str
    text: str


def sample(seed: int, count: int) -> list[Mutant]:
    """`count` mutants, at most one a place; fewer when there are fewer places."""
    ranked: list[tuple[float, Path, int, tuple[Operator, int]]] = []
    for path in _files():
        lines, met = path.read_text(encoding="utf-8").splitlines(), Counter[tuple[str, int]]()
        for (line, column), changes in sorted(_places(path).items()):
            text = lines[line - 1].lstrip()
            place = text, column - len(lines[line - 1]) + len(text)
            met[place] += 1
            random = Random(f"{seed} {path.relative_to(ROOT).as_posix()} {place} {met[place]}")
            ranked.append((random.random(), path, line, random.choice(changes)))
    ranked.sort(key=lambda each: each[0])
    return [_mutant(path, line, *change) for _, path, line, change in ranked[:count]]


def _files() -> list[Path]:
    paths = [ROOT / name for name in MEASURED]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise SystemExit(f"MEASURED names what is not there: {', '.join(missing)}")
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [
        file
        for file in found
        if file.name != "__init__.py" and not any(name in str(file.relative_to(ROOT)) for name in LEFT_OUT)
    ]


def _places(path: Path) -> dict[tuple[int, int], list[tuple[Operator, int]]]:
    """By line and column: what may be done there, as an operator and its how-manieth occurrence."""
    nodes = list(ast_nodes(parso.parse(path.read_text(encoding="utf-8"))))
    operators = [*(get_operator(f"core/{name}")() for name in STOCK), Unmade(), Unreturned()]
    found: dict[tuple[int, int], list[tuple[Operator, int]]] = {}
    for operator in operators:
        positions = ((start, node) for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (start, node) in enumerate(positions):
            if _is_behaviour(node):
                found.setdefault(start, []).append((operator, occurrence))
    return found


def _is_behaviour(node: Any) -> bool:
    """Not what decorators say, slots and frozen, nor a module's constants, which are tuned: 4 threads or 5."""
    if parso.tree.search_ancestor(node, "decorator") is not None:
        return False
    is_inside = any(parso.tree.search_ancestor(node, kind) is not None for kind in ("funcdef", "classdef"))
    return is_inside or parso.tree.search_ancestor(node, "expr_stmt") is None


def _mutant(path: Path, line: int, operator: Operator, occurrence: int) -> Mutant:
    text = path.read_text(encoding="utf-8")
    mutated = mutate_code(text, operator, occurrence)
    before, after = text.splitlines(), mutated.splitlines()
    changed = next(index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new)
    where = path.relative_to(ROOT).as_posix()
    return Mutant(where, line, before[changed].strip(), after[changed].strip(), mutated)


if __name__ == "__main__":
    target = Path(sys.argv[3])
    target.parent.mkdir(parents=True, exist_ok=True)
    drawn = sample(int(sys.argv[1]), int(sys.argv[2]))
    target.write_text(json.dumps([asdict(mutant) for mutant in drawn]), encoding="utf-8")
    print(f"{len(drawn)} mutants, seed {sys.argv[1]}")
