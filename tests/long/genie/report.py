"""`tools/proofs/genie_report.py` with answers that are known."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.proofs import genie_report
from tools.proofs.genie_reference import GenieAnswers

COUNT = 4


def report(command: Sequence[str], known: tuple[list[list[int]], GenieAnswers], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the program's main with answers that Genie gave to the same jobs before."""

    def genie_greedy(bundle: Path, jobs: list[tuple[list[int], int]], scratch: Path, on_step: object) -> GenieAnswers:
        assert jobs == [(prompt, COUNT) for prompt in known[0]]
        return known[1]

    monkeypatch.setattr(genie_report, "genie_greedy", genie_greedy)
    monkeypatch.setattr(sys, "argv", list(command))
    return genie_report.main()
