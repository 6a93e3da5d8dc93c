"""docs/capabilities.md and docs/explanation/reliability.md name tests; they must exist."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^- ([A-Z]\d{2,3}): ")
TEST = re.compile(r" \(`([^`]+::[^`]+)`\)$")


def rows() -> list[tuple[str, str]]:
    """Id and text of every line."""
    lines = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8").splitlines()
    return [(match[1], line) for line in lines if (match := ROW.match(line))]


def claims() -> dict[str, str]:
    """Test ids by row id."""
    return {row: match[1] for row, line in rows() if (match := TEST.search(line))}


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def exists(test_id: str) -> bool:
    file, _, name = test_id.partition("::")
    return (ROOT / file).is_file() and name.startswith("test_") and name in functions(ROOT / file)


def test_every_claim_names_a_test_that_exists() -> None:
    assert [f"{row}: {test_id}" for row, test_id in claims().items() if not exists(test_id)] == []


def test_every_proof_of_a_promise_exists() -> None:
    proofs = re.findall(
        r"`(tests/[^`]+::[^`]+)`", (ROOT / "docs" / "explanation" / "reliability.md").read_text(encoding="utf-8")
    )
    assert len(proofs) >= 15
    assert [test_id for test_id in proofs if not exists(test_id)] == []


def test_every_row_is_there_once_and_names_a_test() -> None:
    assert [row for row, count in Counter(row for row, _ in rows()).items() if count > 1] == []
    assert [row for row, line in rows() if not TEST.search(line)] == []


def test_the_whole_design_card_and_decode_list_are_claimed() -> None:
    expected = {f"C{n:02}" for n in range(1, 8)} | {f"M{n:02}" for n in range(1, 41) if n != 10}
    assert expected <= set(claims())  # M10, a cache that is cleared by hand, is no job of a server
