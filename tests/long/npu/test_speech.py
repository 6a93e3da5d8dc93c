"""Whisper as context binaries of an X Elite, in the HTP emulator: our bundle, and its binaries as AI Hub's folder."""

import shutil
from pathlib import Path

import pytest

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.runtime.qnn.provider import EMULATOR
from engine.sources.resolve import resolve_bundle
from engine.worker.assembly import assemble
from tests.tiny_whisper import SPOKEN, by_transformers, request, run, tokens_of, write_folder

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


@pytest.mark.parametrize("layout", ["{}.bin", "{}_onnx/{}.bin"])
def test_a_folder_of_ai_hub(layout: str, bundle: Path, wanted: dict[str, list[int]], tmp_path: Path) -> None:
    """Both binaries and the words, as qai-hub-models lays them out; no file of ours."""
    folder = tmp_path / "whisper"
    for part in ("encoder", "decoder"):
        path = folder / layout.replace("{}", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / f"{part}.bin", path)
    (folder / "vocab.bin").write_bytes(b"".join(word + b"\0" for word in SPOKEN))
    assert texts_of(resolve_bundle(str(folder), tmp_path / "cache")) == wanted
