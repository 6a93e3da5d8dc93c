"""Whisper as context binaries of an X Elite, in the HTP emulator: our bundle, and its binaries as AI Hub's folder."""

import shutil
from pathlib import Path

import httpx
import pytest

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.runtime.qnn.provider import EMULATOR
from engine.sources.resolve import resolve_bundle
from engine.worker.assembly import assemble
from tests.live import serving
from tests.tiny_whisper import SPOKEN, by_transformers, request, run, tokens_of, write_folder, write_wav

CONTEXT = 200
TOKENS = 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("whisper")
    source = write_folder(folder / "source", CONTEXT)
    arguments = CompileArguments(source, folder / "bundle", target=Target.X_ELITE, quant=Quant.FP16)
    manifest = compile_bundle(arguments, SilentProgress())
    assert manifest.max_context == CONTEXT
    assert manifest.npu is not None and set(manifest.npu.binaries) == {"encoder.bin", "decoder.bin"}
    return folder / "bundle"


def texts_of(folder: Path) -> dict[str, list[int]]:
    """Three texts in two slots."""
    assembled = assemble(EngineConfig(bundle=str(folder), max_running=2))
    assert assembled.ready.device == EMULATOR
    for number in range(3):
        assembled.loop.add(request(number, TOKENS), (), 0, 0.0)
    try:
        return {name: tokens_of(events) for name, events in run(assembled.loop).items()}
    finally:
        assembled.loop.close()
        assembled.runtime.close()


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[int]]:
    return {f"text-{number}": by_transformers(number, TOKENS, CONTEXT) for number in range(3)}


def test_texts_in_the_emulator(bundle: Path, wanted: dict[str, list[int]]) -> None:
    assert texts_of(bundle) == wanted


def as_ai_hub(bundle: Path, folder: Path, layout: str) -> Path:
    """Both binaries and the words, as qai-hub-models lays them out; no file of ours."""
    for part in ("encoder", "decoder"):
        path = folder / layout.replace("{}", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / f"{part}.bin", path)
    (folder / "vocab.bin").write_bytes(b"".join(word + b"\0" for word in SPOKEN))
    return folder


@pytest.mark.parametrize("layout", ["{}.bin", "{}_onnx/{}.bin"])
def test_a_folder_of_ai_hub(layout: str, bundle: Path, wanted: dict[str, list[int]], tmp_path: Path) -> None:
    folder = as_ai_hub(bundle, tmp_path / "whisper", layout)
    assert texts_of(resolve_bundle(str(folder), tmp_path / "cache")) == wanted


def test_it_is_served(bundle: Path, tmp_path: Path) -> None:
    """Words have no times: no graph tells what heads look at."""
    folder = as_ai_hub(bundle, tmp_path / "whisper", "{}.bin")
    write_wav(tmp_path / "sound.wav", seconds=0.9)
    sound = (tmp_path / "sound.wav").read_bytes()
    with serving(str(folder), cache=tmp_path / "cache") as server:
        url = f"{server.url}/v1/audio/transcriptions"

        def asked(**fields: str) -> httpx.Response:
            given = {"language": "en", "temperature": "0.2", "response_format": "verbose_json", **fields}
            return httpx.post(url, data=given | {"model": "whisper"}, files={"file": sound}, timeout=120)

        found = asked().raise_for_status().json()
        assert found["text"] and found["segments"]
        refused = asked(**{"timestamp_granularities[]": "word"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timestamp_granularities")
