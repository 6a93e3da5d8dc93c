"""`deploy/genie_report.py` as a module."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from engine.genie.reference import GenieAnswers

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "genie_report.py"
COUNT = 4


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCRIPT_MODULE = _load()
QUESTIONS: tuple[str, ...] = SCRIPT_MODULE.QUESTIONS


def report(command: Sequence[str], known: tuple[list[list[int]], GenieAnswers], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the script's main with answers that Genie gave to the same jobs before."""

    def genie_greedy(bundle: Path, jobs: list[tuple[list[int], int]], scratch: Path, on_pass: object) -> GenieAnswers:
        assert jobs == [(prompt, COUNT) for prompt in known[0]]
        return known[1]

    monkeypatch.setattr(SCRIPT_MODULE, "genie_greedy", genie_greedy)
    monkeypatch.setattr(sys, "argv", list(command))
    return int(SCRIPT_MODULE.main())
