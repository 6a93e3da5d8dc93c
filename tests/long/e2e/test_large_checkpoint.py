"""A checkpoint of a real size: 28 layers in the shape of Qwen3-0.6B, random weights, compiled to int4 and served."""

import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.live import serving
from tools.random_checkpoint import SHAPES, write_checkpoint


def test_a_06b_checkpoint_compiles_and_serves(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "source", SHAPES["qwen3-0.6b"])
    began = time.perf_counter()
    command = [sys.executable, "-m", "server", "compile", str(tmp_path / "source"), "-o", str(tmp_path / "bundle")]
    done = subprocess.run(
        [*command, "--quant", "int4", "--quality", "fast", "--parity-tokens", "64"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"0.6B checkpoint to int4 in {time.perf_counter() - began:.0f} s")
    with serving(
        "--bundle", str(tmp_path / "bundle"), "--kv-slots", "256", "--lookup-rows", "0", cache=tmp_path / "cache"
    ) as server:
        body = {"model": "bundle", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "model": model}, timeout=300).json()
        assert answer["usage"]["completion_tokens"] == 8
        assert answer["choices"][0]["finish_reason"] == "length"
        assert server.metric("hexserve:steps_total") == 8
