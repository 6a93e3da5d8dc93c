"""`hexserve eval`: its table, its files, and the sentences it ends with."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from engine.bundle.manifest import load_manifest
from engine.evaluation import models
from engine.evaluation.models import EvaluatedModel, Float32
from server.commands import evaluation
from server.commands.cli import app
from server.commands.exit_codes import FAILED, INTERRUPTED
from tests.bundles import Bundles
from tests.embedders import compiled

TEXT = "The boat came late, and nobody counted the crates that stood on its deck. " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def run(tmp_path: Path, *words: object) -> Result:
    environment = {"HEXSERVE_CACHE_DIR": str(tmp_path / "cache")}
    return CliRunner().invoke(app, ["eval", *map(str, words)], env=environment)


def test_several_bundles_against_a_checkpoint(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ("--context", 32, "--tokens", 150, "--json", figures)
    chosen = [bundles("free"), bundles("segments int4")]
    done = run(tmp_path, *chosen, "--against", bundles.source, "--text", text, *options)
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert (found["windows"], found["context"], found["stride"], found["seed"]) == (5, 32, 32, 0)
    assert found["intervals"] == {"level": 0.95, "resamples": 1000, "block_tokens": 32}
    exact, rounded = found["models"]
    assert [each["name"] for each in found["models"]] == list(map(str, chosen))
    assert [each["form"] for each in (exact, rounded, found["reference"])] == ["fp32", "int4", "float32"]
    for each in (exact, rounded, found["reference"]):
        assert each["quality"]["tokens"] == 145  # each of five windows has a first token
    assert exact["quality"]["top1"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert rounded["quality"]["kl"]["low"] > exact["quality"]["kl"]["high"]
    assert rounded["quality"]["kl_p99"]["value"] > rounded["quality"]["kl"]["value"]
    assert exact["quality"]["perplexity"]["value"] == pytest.approx(
        found["reference"]["quality"]["perplexity"]["value"]
    )
    assert f"{rounded['quality']['perplexity']['value']:.2f}" in done.stdout
    assert "145 tokens predicted, in 5 windows of up to 32, 32 apart" in done.stdout
    for title in ("perplexity", "top-1 %", "KL mean", "KL p99", "int4", "float32"):
        assert title in done.stdout
    assert "evaluate" in done.stderr  # its progress


def test_a_bundle_alone_and_overlapping(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ("--context", 32, "--stride", 16, "--tokens", 100, "--json", figures)
    done = run(tmp_path, bundles("free"), "--text", text, *options)
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text(encoding="utf-8"))
    (alone,) = found["models"]
    assert (alone["quality"]["tokens"], alone["quality"]["kl"], found["reference"]) == (99, None, None)
    assert "KL" not in done.stdout


def test_what_is_served_has_a_row_of_its_own(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ("--served", "--context", 32, "--tokens", 100, "--json", figures)
    done = run(tmp_path, bundles("segments int4"), "--against", bundles("free"), "--text", text, *options)
    assert done.exit_code == 0, done.output
    bundle, served = json.loads(figures.read_text(encoding="utf-8"))["models"]
    assert (bundle["form"], served["form"]) == ("int4", "int4, served")
    assert served["name"] == bundle["name"]
    for figure in ("perplexity", "kl", "top1"):
        assert served["quality"][figure]["value"] == pytest.approx(bundle["quality"][figure]["value"], rel=0.05)
    assert "int4, served" in done.stdout


def test_against_a_float_bundle(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    done = run(tmp_path, bundles("segments int4"), "--against", bundles("free"), "--text", text, "--tokens", 50)
    assert done.exit_code == 0, done.output
    assert "KL mean" in done.stdout


def test_the_seed_moves_the_intervals_alone(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    found = []
    for seed in (0, 0, 1):
        file = tmp_path / "figures.json"
        assert run(tmp_path, bundles("free"), "--text", text, "--seed", seed, "--json", file).exit_code == 0
        found.append(json.loads(file.read_text(encoding="utf-8"))["models"])
    assert found[0] == found[1] != found[2]
    assert len({each[0]["quality"]["perplexity"]["value"] for each in found}) == 1


def refused(done: Result, expected: str, code: int = 2) -> None:
    assert done.exit_code == code, done.output
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {expected}"]


def test_a_users_mistake_is_one_sentence(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    bundle, latin, short = bundles("free"), tmp_path / "latin", tmp_path / "short"
    latin.write_bytes(b"caf\xe9")
    short.write_text("a", encoding="utf-8")
    none = tmp_path / "none"
    refused(run(tmp_path, bundle, "--text", none), f"--text {none} cannot be read: No such file or directory")
    refused(run(tmp_path, bundle, "--text", latin), f"--text {latin} cannot be used: it is not UTF-8 (byte 3)")
    refused(
        run(tmp_path, bundle, "--text", short),
        "the text has 1 tokens: too few to predict one from those before it",
    )
    missing = run(tmp_path, none, "--text", text)
    assert missing.exit_code == 2
    assert missing.stderr.startswith(f"error: {none} does not exist")
    missing = run(tmp_path, bundle, "--against", none, "--text", text)
    assert missing.exit_code == 2
    assert missing.stderr.startswith(f"error: --against {none} does not exist")
    refused(
        run(tmp_path, bundle, "--against", "~no-such-user/m", "--text", text),
        "--against ~no-such-user/m names a home folder that does not exist",
    )
    refused(
        run(tmp_path, bundle, "--against", "x" * 300, "--text", text),
        f"--against {'x' * 300} cannot be read: File name too long",
    )
    longest = load_manifest(bundle).max_context
    refused(
        run(tmp_path, bundle, "--text", text, "--context", longest + 1),
        f"--context {longest + 1}: {bundle} holds at most {longest} tokens of a text",
    )
    refused(
        run(tmp_path, bundle, "--text", text, "--context", 1),
        "--context must be at least 2, or 0: a token is predicted from one before it",
    )
    refused(
        run(tmp_path, bundle, "--text", text, "--context", 8, "--stride", 9),
        "--stride 9 is more than --context 8: tokens between two windows would be left out",
    )
    file = none / "file"
    expected = f"--json {file} cannot be written: its folder does not exist"
    refused(run(tmp_path, bundle, "--text", text, "--json", file), expected)
    assert "Missing option '--text'" in run(tmp_path, bundle).stderr
    assert run(tmp_path, bundle, "--text", text, "--tokens", -1).exit_code == 2


def test_a_file_of_figures_that_cannot_be_written(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    done = run(tmp_path, bundles("free"), "--text", text, "--json", tmp_path)
    refused(done, f"{tmp_path} cannot be written: Is a directory")


def test_another_vocabulary_and_no_vocabulary_to_predict(bundles: Bundles, text: Path, tmp_path: Path) -> None:
    bundle, embedder = bundles("free"), compiled("embedder", tmp_path)
    done = run(tmp_path, bundle, embedder, "--text", text)
    refused(done, f"{embedder} makes embeddings: it predicts no next token")
    reranker = compiled("reranker", tmp_path)
    done = run(tmp_path, bundle, reranker, "--text", text)
    sizes = [load_manifest(each).model.vocab for each in (reranker, bundle)]
    refused(done, f"{reranker} has another vocabulary than {bundle}: {sizes[0]} tokens, not {sizes[1]}")


def test_an_interrupt_ends_with_its_code(
    bundles: Bundles, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    done = run(tmp_path, bundles("free"), "--text", text, "--json", tmp_path / "figures.json")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (INTERRUPTED, "interrupted; nothing was written")
    assert not (tmp_path / "figures.json").exists()


def test_a_model_that_gives_no_numbers(
    bundles: Bundles, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> EvaluatedModel:
        model = models.open_bundle(*given)

        def infinite(tokens: Sequence[int], *, first: int = 0) -> Float32:
            return model.logits(tokens, first=first) * np.float32("inf")

        return dataclasses.replace(model, logits=infinite)

    monkeypatch.setattr(evaluation, "open_bundle", broken)
    done = run(tmp_path, bundles("free"), "--text", text)
    refused(done, f"{bundles('free')} gave logits that are not finite", FAILED)
