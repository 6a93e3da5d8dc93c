"""`python -m tools.evaluate`: its table, its files, and the sentences it ends with."""

import json
import sys
from pathlib import Path

import pytest

from tests.bundles import Bundles
from tests.tools.evaluate.test_main import Capture, run
from tools.evaluate import __main__ as command

LM_EVAL = """
import json, pathlib, sys, urllib.request
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
settings = dict(part.split("=", 1) for part in given["--model_args"].split(","))
body = {"model": settings["model"], "prompt": "one two", "max_tokens": 1, "logprobs": 1, "echo": True}
asked = urllib.request.Request(settings["base_url"], json.dumps(body).encode(), {"content-type": "application/json"})
answered = json.load(urllib.request.urlopen(asked))
found = {"acc,none": answered["usage"]["prompt_tokens"], "acc_stderr,none": 0.5}
file = pathlib.Path(given["--output_path"]) / "results_1.json"
file.write_text(json.dumps({"results": {given["--tasks"]: found}}))
"""


def test_tasks_and_speed_are_drawn_beside_errors(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A stand-in for lm-eval asks the server that the command has started."""
    script, bundle, written = tmp_path / "stand_in.py", bundles("segments int4"), tmp_path / "written.json"
    script.write_text(LM_EVAL, encoding="utf-8")
    error = {"value": 0.2, "low": 0.1, "high": 0.3}
    scored = {"name": str(bundle), "form": "int4", "size": 1_000_000, "quality": {"kl": error, "perplexity": error}}
    figures, drawn = tmp_path / "figures.json", tmp_path / "drawn.svg"
    figures.write_text(json.dumps({"reference": scored, "models": [scored]}), encoding="utf-8")
    monkeypatch.setattr(command, "find_program", lambda python: (sys.executable, str(script)))
    words = ("--speed", "--tasks", "quiz", "--json", written, "--figures", figures, "--svg", drawn)
    assert run(monkeypatch, tmp_path, bundle, *words) == 0
    (model,) = json.loads(written.read_text(encoding="utf-8"))["models"]
    (metric,) = model["tasks"]["quiz"]["metrics"].values()
    tokens = int(metric["value"])
    assert (tokens > 1, metric["stderr"], model["tasks"]["quiz"]["headline"]) == (True, 0.5, "acc")
    assert 0 < model["speed"]["decode"]["low"] <= model["speed"]["decode"]["high"]
    printed = capsys.readouterr().out
    for said in ("quiz", f"{tokens - 0.98:.3g}..{tokens + 0.98:.3g}", "decode", "tokens/s", "one client"):
        assert said in printed
    assert "Mean KL from the float model, against decode speed" in drawn.read_text(encoding="utf-8")
