"""`python -m tools.step_profile`: where a step takes its time."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.random_gguf import write_gguf
from tests.server.commands.scripted_server import Script, serving
from tools import step_profile
from tools.random_checkpoint import SHAPES
from tools.step_profile import StepProfile, markdown, read_metrics, rows, step_weights

SHAPE = replace(SHAPES["tiny"], experts=8, chosen=2, tied=False, vocab=512)
BYTES = 0.5 + 4 / 32  # of a weight of 4 bits with its share of a float32 scale
PROFILE = StepProfile(4, 10, {"plan": 0.1, "graph": 0.8, "graph: head": 0.2, "send": 0.1})


def test_parts_of_the_graph_stand_below_it_and_count_once() -> None:
    made = rows([PROFILE])
    assert [row[0] for row in made] == [
        *("plan", "pack", "blocks", "graph", "graph: head", "sample", "commit", "keep", "events", "send"),
        "whole step",
    ]
    assert dict(made) | {"plan": "10.00 (10.0%)", "graph: head": "20.00 (20.0%)", "pack": "0.00 (0.0%)"} == dict(made)
    assert made[-1] == ["whole step", "100.00 (100.0%)"]
    assert markdown([PROFILE]).startswith("| ms a step | 4 clients |\n| --- | --- |\n| plan | 10.00 (10.0%) |")


def test_weights_that_steps_read_stand_below() -> None:
    made = rows([dataclasses.replace(PROFILE, weights=5e9)])
    assert made[-2:] == [["MB of weights a step", "500"], ["GB of them a second", "25.0"]]


def test_experts_are_counted_behind_their_name() -> None:
    text = 'hexserve:stage_seconds_total{stage="plan"} 2.0\nhexserve:experts_read_total{model="m"} 7.0\n'
    assert read_metrics(text) == ({"plan": 2.0}, 7.0)


def test_nothing_ran() -> None:
    assert rows([StepProfile(1, 0, {})])[0] == ["plan", "-"]


def test_a_server_of_its_own_is_profiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def scripted(bundle: str) -> Iterator[str]:
        assert bundle == "some"
        with serving(Script()) as address:
            yield address

    monkeypatch.setattr(step_profile, "running_server", scripted)
    words = ["--bundle", "some", "--clients", "1,2", "--requests-per-client", "2"]
    monkeypatch.setattr("sys.argv", ["step_profile", *words])
    assert step_profile.main() == 0
    printed = capsys.readouterr().out
    for text in ("1 client", "2 clients", "graph: layers", "80.00 (80.0%)", "| plan | 5.00 (5.0%) | 5.00 (5.0%) |"):
        assert text in printed


def test_bytes_of_a_shape(tmp_path: Path) -> None:
    write_gguf(tmp_path / "random.gguf", SHAPE)
    arguments = CompileArguments(tmp_path / "random.gguf", tmp_path / "bundle", quant=Quant.KEEP)
    compile_bundle(arguments, SilentProgress())
    found = step_weights(tmp_path / "bundle")
    heads = 2 * SHAPE.heads + 2 * SHAPE.kv_heads  # queries and outputs, keys and values
    assert found.expert == 3 * SHAPE.hidden * SHAPE.ffn * BYTES
    attention = SHAPE.layers * heads * SHAPE.head_dim * SHAPE.hidden
    assert found.matrices == (attention + SHAPE.vocab * SHAPE.hidden) * BYTES
    assert found.read(steps=3, experts=5) == 3 * found.matrices + 5 * found.expert
