"""`hexserve serve` on Snapdragon X Elite bundles, in the HTP emulator: same answers as on the CPU, and it says so."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest
from openai import OpenAI
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import describe_file, load_manifest, save_manifest
from engine.bundle.specs import ModelTask
from engine.compile.arguments import CompileArguments
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from tests.live import LiveServer, serving
from tests.long.npu.layouts import LAYOUTS

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
TIMEOUT_S = 240
SOUND = "reads its own sample as it should"


def ask(server: LiveServer, question: str = QUESTION, **options: object) -> str:
    """The streamed answer, put together."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0)
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=24,
        stream=True,
        **options,  # type: ignore[call-overload]
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.fixture(scope="module")
def cpu_answer() -> str:
    with serving("demo") as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["meta"]["device"] == "CPU"
        return ask(server)


@pytest.mark.parametrize("layout", ["fp16", "w4", "w8a16"])
def test_the_readme_question_has_the_answer_of_the_cpu(
    npu_bundle: Callable[[str], Path], layout: str, cpu_answer: str, npu_cache: Path
) -> None:
    with serving(str(npu_bundle(layout)), cache=npu_cache) as server:
        assert SOUND in "".join(server.lines)
        assert ask(server) == cpu_answer == ANSWER
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert (model["meta"]["device"], model["meta"]["quant"]) == ("HTP emulator", layout)
        assert model["meta"]["variants"] == ["ar1_cl256", "ar32_cl256"]
        assert httpx.get(f"{server.url}/health").json()["device"] == "HTP emulator"
        assert 'hexserve:device_info{device="HTP emulator"' in httpx.get(f"{server.url}/metrics").text


def test_clients_share_steps(npu_bundle: Callable[[str], Path], npu_cache: Path) -> None:
    """Four at once take far fewer steps than one after the other would, and nobody's answer changes."""
    with serving(str(npu_bundle("fp16")), "--deterministic", cache=npu_cache) as server:
        alone = ask(server)
        steps = server.metric("hexserve:steps_total")
        with ThreadPoolExecutor(4) as clients:
            together = list(clients.map(lambda _: ask(server), range(4)))
        assert together == [alone] * 4
        assert server.metric("hexserve:steps_total") - steps < 3 * steps


def test_graphs_of_other_weights_are_warned_of_at_every_load(npu_bundle: Callable[[str], Path], tmp_path: Path) -> None:
    """A layer's keys are lost, as a fault of a driver might have it: answers are fluent noise."""
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "bundle"
    shutil.copytree(demo_folder(), checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.2.self_attn.k_proj.weight"] *= 0
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    fields = {"source": checkpoint, "output": folder, "name": "demo", "parity_tokens": 32, **LAYOUTS["w8a16"]}
    compile_bundle(CompileArguments(**fields), SilentProgress())  # type: ignore[arg-type]
    wrong = msgspec.structs.replace(load_manifest(folder), sample=load_manifest(npu_bundle("w8a16")).sample)
    save_manifest(folder, wrong)
    warning = "may answer wrongly: its graphs do not compute what they did for the compiler"
    for _ in range(2):
        with serving(str(folder), cache=tmp_path / "cache") as server:
            log = "".join(server.lines)
            assert warning in log and SOUND not in log


def test_vectors_are_no_sample(tmp_path: Path) -> None:
    """The rows of an embedder are no logits, so nothing is kept to compare them with."""
    fields = {"source": demo_folder(), "output": tmp_path / "bundle", "name": "demo", "task": ModelTask.EMBED}
    made = compile_bundle(CompileArguments(**fields, parity_tokens=16, **LAYOUTS["w4"]), SilentProgress())  # type: ignore[arg-type]
    assert made.sample is None and made.parity["cosine"] > 0.9


def test_a_shared_binary_ends_with_a_sentence_not_a_crash(npu_bundle: Callable[[str], Path], tmp_path: Path) -> None:
    folder = npu_bundle("shared")
    with (
        pytest.raises(AssertionError, match=r"holds 2 graphs that share their weights.*--one-graph-per-binary"),
        serving(str(folder), cache=tmp_path),
    ):
        pass


def test_a_folder_without_qnn_libraries_ends_with_a_sentence(npu_bundle: Callable[[str], Path], tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"error: .*HEXSERVE_QNN_OPTIONS: libraries: there is no \S*QnnHtp\S* in"),
        serving(str(npu_bundle("fp16")), "--qnn-options", f"libraries={tmp_path}", cache=tmp_path / "cache"),
    ):
        pass


def test_a_damaged_binary_ends_with_a_sentence(npu_bundle: Callable[[str], Path], tmp_path: Path) -> None:
    """By its sha256; made so by its compiler, by the trial in a process of its own."""
    source = npu_bundle("fp16")
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    binary = folder / "ar32_cl256_1_of_2.bin"
    content = bytearray(binary.read_bytes())
    content[4096:200_000] = bytes(200_000 - 4096)
    binary.write_bytes(content)
    for message in (
        r"ar32_cl256_1_of_2\.bin is damaged: its sha256",
        r"error: (?!.*sha256).*(ar32_cl256_1_of_2|damaged)",
    ):
        with pytest.raises(AssertionError, match=message), serving(str(folder), cache=tmp_path / "cache"):
            pass
        manifest = load_manifest(folder)
        files = manifest.files | {binary.name: describe_file(binary)}
        save_manifest(folder, msgspec.structs.replace(manifest, files=files))
