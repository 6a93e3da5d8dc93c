"""The fixed top level and the packages a newcomer expects."""

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {"server", "engine", "tests", "deploy", "docs", ".ci"}
FILES = {
    *("pyproject.toml", "Dockerfile", "README.md", "Makefile", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(".gitignore", ".dockerignore", ".editorconfig", ".pre-commit-config.yaml", "MANIFEST.in"),
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
    assert set(extras) == {"compile", "qnn", "hub", "bench", "dev"}
    assert any(line.startswith("onnxruntime-qnn>=2.7") for line in extras["qnn"])
    assert any(line.startswith("qai-hub-models-cli") for line in extras["hub"])
