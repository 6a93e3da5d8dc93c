"""docs/capabilities.md names tests; they must exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([CMGPDLN]\d\d) \|.*\| `([^`]+)` \|$")


def claims() -> dict[str, str]:
    lines = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8").splitlines()
    return {match[1]: match[2] for line in lines if (match := ROW.match(line))}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_claim_names_a_test_that_exists() -> None:
    missing = []
    for row, test_id in claims().items():
        file, _, name = test_id.partition("::")
        path = ROOT / file
        if not path.is_file() or name not in functions(path) or not name.startswith("test_"):
            missing.append(f"{row}: {test_id}")
    assert missing == []


def test_the_whole_design_card_and_decode_list_are_claimed() -> None:
    expected = {f"C{n:02}" for n in range(1, 8)} | {f"M{n:02}" for n in range(1, 41)}
    assert expected <= set(claims())
