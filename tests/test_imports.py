"""Who may import whom: the table of imports.toml, enforced. Imports are read with ast; nothing is loaded."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"engine", "server", "tools"}
# Decisions: no clock, no arrays, no I/O.
PURE = (
    "engine/core/",
    "engine/request.py",
)
EFFECTS = {"numpy", "os", "time", "socket", "threading", "asyncio", "subprocess", "random"}
# What the HTTP process may load of the grammar side: nothing that compiles.
SERVED_GRAMMAR = {"engine/grammar/spec.py", "engine/grammar/compiler_pool.py"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: the places of ours and the packages that files of a place may import."""

    place: str
    ours: frozenset[str]
    packages: frozenset[str]


@cache
def table() -> tuple[Rule, ...]:
    rows = tomllib.loads((ROOT / "tests" / "imports.toml").read_text(encoding="utf-8"))
    return tuple(Rule(place, frozenset(row["ours"]), frozenset(row["packages"])) for place, row in rows.items())


@cache
def modules() -> Mapping[str, str]:
    """File by dotted name; a package's name stands for its `__init__.py`."""
    files = [path.relative_to(ROOT) for name in sorted(OURS) for path in (ROOT / name).rglob("*.py")]
    return {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix() for file in files}


def names(node: ast.stmt) -> Iterator[str]:
    """Dotted names that a statement imports; of `from package import module` the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in modules() else node.module


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All of a tree, without a look into expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements(child)


@cache
def statements_of(file: str) -> tuple[ast.stmt, ...]:
    return tuple(statements(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """What each file imports: files of ours, top-level names of everything else."""
    found = {}
    for file in modules().values():
        wanted = {name for node in statements_of(file) for name in names(node)}
        found[file] = frozenset(modules().get(name, name.split(".")[0]) for name in wanted)
    return found


@cache
def rule_of(file: str) -> Rule:
    """The rule of the longest place that covers a file: a folder ends with a slash, a star stands for anything."""
    fitting = [rule for rule in table() if fnmatch(file, rule.place + "*" if rule.place.endswith("/") else rule.place)]
    assert fitting, f"{file} is covered by no row of imports.toml"
    return max(fitting, key=lambda rule: len(rule.place))


def is_allowed(file: str, target: str) -> bool:
    rule = rule_of(file)
    if target not in imports():
        return target in sys.stdlib_module_names or target in rule.packages
    home = "/".join(file.split("/")[:2])
    inside = target.startswith(home + "/") or (file.count("/") == 1 and rule.place == target)
    return inside or target.count("/") == 0 or any(target.startswith(place) for place in rule.ours)


def test_the_table_is_what_the_code_does() -> None:
    wrong = [
        f"{file} imports {target}" for file in imports() for target in imports()[file] if not is_allowed(file, target)
    ]
    assert wrong == []


def test_the_table_allows_nothing_that_nobody_does() -> None:
    idle = []
    for rule in table():
        used = [target for file, found in imports().items() if found and rule_of(file) == rule for target in found]
        idle += [f"{rule.place} -> {place}" for place in rule.ours if not any(t.startswith(place) for t in used)]
        idle += [f"{rule.place} -> {package}" for package in rule.packages if package not in used]
    assert idle == []


def test_no_circle_of_files_and_none_of_folders() -> None:
    """TopologicalSorter raises CycleError and names the circle."""
    tuple(
        TopologicalSorter({file: found & imports().keys() - {file} for file, found in imports().items()}).static_order()
    )
    between: dict[str, set[str]] = {}
    for file, found in imports().items():
        here = place_of(file)
        between.setdefault(here, set()).update(place_of(target) for target in found & imports().keys())
    tuple(TopologicalSorter({here: there - {here} for here, there in between.items()}).static_order())


def place_of(file: str) -> str:
    """The folder right below `server/` or `engine/`, or the file itself at their roots."""
    return "/".join(file.split("/")[:2])


def test_a_route_imports_no_route() -> None:
    routes = {file for file in imports() if "\nrouter = APIRouter(" in (ROOT / file).read_text(encoding="utf-8")}
    assert [(file, target) for file in routes for target in imports()[file] & (routes - {file})] == []


def test_the_roots_stay_small() -> None:
    for folder, most in (("server", 8), ("engine", 6)):
        flat = [path.name for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
        assert len(flat) <= most, flat


@pytest.mark.parametrize("folder", sorted({str(Path(file).parent) for file in modules().values()}))
def test_every_folder_says_in_one_sentence_what_lives_there(folder: str) -> None:
    tree = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
    said = ast.get_docstring(tree) or ""
    assert len(tree.body) == 1, "importing a package loads nothing"
    assert said and "\n" not in said and len(said) <= 130


def test_no_class_name_twice() -> None:
    found: dict[str, list[str]] = {}
    for file in [*modules().values(), *(f"deploy/{path.name}" for path in (ROOT / "deploy").glob("*.py"))]:
        for node in statements_of(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(file)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_the_http_process_compiles_no_grammar() -> None:
    served = [file for file in imports() if file.startswith(("server/", "engine/client/"))]
    named = {target for file in served for target in imports()[file] if target.startswith("engine/grammar/")}
    assert named <= SERVED_GRAMMAR
    assert [file for file in SERVED_GRAMMAR if "llguidance" in imports()[file]] == []


def test_the_http_process_renders_no_template() -> None:
    reached = {"server/app.py", "server/run.py", "engine/client/engine.py"}
    while more := {target for file in reached for target in imports()[file] & imports().keys()} - reached:
        reached |= more
    assert [file for file in reached if "jinja2" in imports()[file]] == []


def test_decisions_are_pure() -> None:
    wrong = [
        f"{file}: {found & EFFECTS}" for file, found in imports().items() if file.startswith(PURE) and found & EFFECTS
    ]
    assert wrong == []
