"""The first models of a user with an empty home: SmolLM2 out of its package, the README's out of a hub."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from engine.sources.packaged import catalogue
from tests.engine.sources.fake_hub import FakeHub, serving_hub

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"  # as the hub has it


def user(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of one who has nothing but this home."""
    own = {"HOME": str(home), "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own, "XDG_CACHE_HOME": str(home / "cache"), **more}


def test_smollm2_answers_from_an_empty_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "server", "run", "smollm2", "--temperature", "0", "--max-tokens", "12"]
    started = time.monotonic()
    done = subprocess.run(
        command,
        input="What is the capital of France?\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=tmp_path,
        env=user(tmp_path, {}),
    )
    with capsys.disabled():
        print(f"\nhexserve run smollm2, from an empty home to its end: {time.monotonic() - started:.1f} s")
    assert done.returncode == 0, done.stderr
    assert "smollm2: 92.9 MB, from the Python package index" in done.stderr
    # llama-server on the same file and the same question, greedily; at 4 bits this model is no better than that.
    assert done.stdout.startswith("L'Étoile, la Marseillaise,")


def test_the_readme_s_model_is_served_by_its_name(
    qwen_coder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fetched from a hub made here, by the command as it stands in the README, to the answer of its API."""
    (words,) = re.findall(r"^\.venv/bin/hexserve (serve Qwen/\S+)$", README, re.MULTILINE)
    hub = FakeHub()
    hub.repositories[words.partition(" ")[2].partition(":")[0]] = {
        FILE: qwen_coder.read_bytes(),
        "qwen2.5-coder-0.5b-instruct-q8_0.gguf": b"another",
    }
    started = time.monotonic()
    with serving_hub(hub):
        server = subprocess.Popen(
            [sys.executable, "-m", "server", *words.split(), "--port", "0"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8", cwd=tmp_path,
            env=user(tmp_path, {"HF_ENDPOINT": hub.url}),
        )  # fmt: skip
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if address := re.search(r"serving .+ on (http://\S+)", line):
                    break
            else:
                pytest.fail("".join(said))
            question = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
            body = {"model": "any", "messages": question, "max_tokens": 40, "temperature": 0}
            model = httpx.get(f"{address[1]}/v1/models", timeout=60).json()["data"][0]
            answer = httpx.post(f"{address[1]}/v1/chat/completions", json=body | {"model": model["id"]}, timeout=300)
        finally:
            server.terminate()
            server.communicate()
    with capsys.disabled():
        print(f"\n{words}, from an empty home to its first answer: {time.monotonic() - started:.1f} s")
    assert hub.names() == [FILE]
    assert set(model["meta"]["capabilities"]) == set(catalogue()["qwen-coder"].abilities)
    assert "def " in json.dumps(answer.json()["choices"][0]["message"]["content"])
