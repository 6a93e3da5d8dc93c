"""lm-eval as a program: what it is told, what is read of its results, and how it may fail."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tools.evaluate import lm_eval
from tools.evaluate.lm_eval import (
    LmEvalFailed,
    TaskMetric,
    TaskRequest,
    find_program,
    lm_eval_command,
    read_results,
    run_lm_eval,
    spared,
)

ADDRESS = "http://127.0.0.1:9"


def program(folder: Path, source: str) -> tuple[str, ...]:
    """A stand-in: it is given lm-eval's arguments."""
    file = folder / "stand_in.py"
    file.write_text("import json, os, pathlib, sys\n" + textwrap.dedent(source), encoding="utf-8")
    return (sys.executable, str(file))


def request(*words: str, **given: Any) -> TaskRequest:
    return TaskRequest(**({"names": ("a", "b"), "limit": 0, "folder": None, "program": words} | given))


def test_what_it_is_told() -> None:
    command = lm_eval_command(request("python"), ADDRESS, "my model", 77, Path("/out"))
    assert command == [
        *("python", "--model", "local-completions", "--model_args"),
        f"model=my model,base_url={ADDRESS}/v1/completions,max_length=77,num_concurrent=4,max_retries=3",
        *("--tasks", "a,b", "--output_path", "/out"),
    ]
    more = lm_eval_command(request("x", limit=5, folder=Path("/tasks")), ADDRESS, "m", 77, Path("/out"))
    assert more[-4:] == ["--limit", "5", "--include_path", "/tasks"]


def test_loopback_is_asked_without_a_proxy() -> None:
    found = spared({"HOME": "/h", "http_proxy": "http://proxy", "no_proxy": "intranet"})
    assert (found["NO_PROXY"], found["no_proxy"]) == ("intranet,127.0.0.1",) * 2
    assert spared({})["NO_PROXY"] == "127.0.0.1"


def test_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_program(Path("/env/python")) == ("/env/python", "-m", "lm_eval")
    monkeypatch.setattr(lm_eval, "PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(None) == ()
    script = tmp_path / "lm-eval"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find_program(None) == (str(script),)
    monkeypatch.setattr(lm_eval, "PACKAGE", "json")
    assert find_program(None) == (sys.executable, "-P", "-m", "json")


def test_results_are_read_by_task() -> None:
    results = {
        "choices": {"alias": "c", "acc,none": 0.5, "acc_stderr,none": 0.1, "acc_norm,none": 0.25, "sample_len": 4},
        "math": {
            "exact_match,strict-match": 0.5,
            "exact_match_stderr,strict-match": 0.0,
            "exact_match,flexible-extract": 0.75,
        },
        "story": {"bits_per_byte,none": 1.5, "bits_per_byte_stderr,none": "N/A"},
        "broken": {"alias": "b", "acc,none": "N/A", "f1,none": float("nan")},
    }
    found = read_results({"results": results}, ["choices"])
    assert list(found) == ["choices", "math", "story"]
    assert found["choices"].headline == "acc_norm"
    assert found["choices"].metrics == {"acc": TaskMetric(0.5, 0.1), "acc_norm": TaskMetric(0.25, None)}
    assert found["math"].headline == "exact_match,strict-match"
    assert found["story"].headline == "bits_per_byte"
    assert found["story"].metrics["bits_per_byte"] == TaskMetric(1.5, None)
    with pytest.raises(LmEvalFailed, match="no figures"):
        read_results({"results": {"broken": results["broken"]}}, ["broken"])


def test_a_group_is_one_column_and_a_tag_one_for_each_task() -> None:
    results = {name: {"acc,none": 0.5} for name in ("mmlu", "mmlu_law", "arc_easy", "arc_hard")}
    content = {"results": results, "group_subtasks": {"mmlu": ["mmlu_law"], "arc_easy": [], "arc_hard": []}}
    assert list(read_results(content, ["mmlu", "ai2_arc"])) == ["mmlu", "arc_easy", "arc_hard"]
    assert list(read_results(content, ["mmlu_law"])) == ["mmlu", "mmlu_law", "arc_easy", "arc_hard"]


def test_intervals_are_those_of_the_standard_error() -> None:
    assert TaskMetric(0.5, 0.1).bounds == pytest.approx((0.304, 0.696), abs=1e-3)
    assert TaskMetric(0.5, None).bounds is None
    assert TaskMetric(1.0, 0.0).bounds is None  # all examples alike: nothing is known of the error


def test_a_run_with_its_results(tmp_path: Path) -> None:
    words = program(
        tmp_path,
        """
        place = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1]) / "model"
        place.mkdir()
        (place / "results_2026.json").write_text(json.dumps({"results": {"a": {"acc,none": 0.5}}}))
        print("a table that nobody wants")
        """,
    )
    found = run_lm_eval(request(*words), ADDRESS, "m", 77)
    assert found["a"].metrics == {"acc": TaskMetric(0.5, None)}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("sys.exit(3)", "lm-eval ended with status 3; what it said stands above"),
        ("pass", "lm-eval wrote no results"),
    ],
)
def test_a_run_without_results(tmp_path: Path, source: str, sentence: str) -> None:
    with pytest.raises(LmEvalFailed) as failed:
        run_lm_eval(request(*program(tmp_path, source)), ADDRESS, "m", 77)
    assert str(failed.value) == sentence


def test_a_program_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(LmEvalFailed, match=f"{tmp_path} cannot be started: Permission denied"):
        run_lm_eval(request(str(tmp_path)), ADDRESS, "m", 77)
