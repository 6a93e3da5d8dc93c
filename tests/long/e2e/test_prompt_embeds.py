"""A real server answers a prompt of embeddings as it answers the prompt of tokens that has them."""

from pathlib import Path

import httpx
import numpy as np
import onnxruntime as ort

from engine.bundle.manifest import GraphKind, load_manifest
from engine.compile.arguments import CompileArguments, Layout, Quant, Split
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from tests.embeds import encoded
from tests.live import serving

PROMPT = "The quick brown fox jumps over the lazy dog. The capital of France is"


def test_the_same_text(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    options = {"quant": Quant.INT8, "layout": Layout.POOL, "split": Split.LUT_LMHEAD, "parity_tokens": 8}
    compile_bundle(CompileArguments(demo_folder(), folder, **options), SilentProgress())  # type: ignore[arg-type]
    table = next(graph for graph in load_manifest(folder).graphs if graph.kind is GraphKind.LUT)
    session = ort.InferenceSession(str(folder / table.file), providers=["CPUExecutionProvider"])
    with serving("--bundle", str(folder), "--model-name", "demo", cache=tmp_path / "cache") as server:
        ids = httpx.post(f"{server.url}/tokenize", json={"model": "demo", "prompt": PROMPT}).json()["tokens"]
        rows = session.run(None, {"input_ids": np.array([ids], np.int32)})[0][0]
        body = {"model": "demo", "temperature": 0, "max_tokens": 16, "logprobs": 1}

        def answer(**prompt: object) -> dict[str, object]:
            found = httpx.post(f"{server.url}/v1/completions", json=body | prompt, timeout=60).json()
            return {"text": found["choices"][0]["text"], "tokens": found["usage"]["prompt_tokens"]}

        expected = answer(prompt=ids)
        assert expected["tokens"] == len(ids)
        assert answer(prompt_embeds=encoded(rows)) == expected
        assert answer(prompt_embeds=encoded(rows)) == expected  # now from the prefix cache
        refused = httpx.post(f"{server.url}/v1/completions", json=body | {"prompt_embeds": encoded(rows[:, :-1])})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_embeds")
