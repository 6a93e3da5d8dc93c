"""Folders in the shape of GenieX: graphs that take embeddings, with the table of them beside the binaries."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bundle.variant import StepShape
from engine.sources.resolve import convert_folder
from tests.genie.emulator import EMULATOR, compile_demo, compile_generated, emulated_service
from tests.genie.generator import Recipe, generate
from tests.genie.test_geniex import PROMPTS, TABLE


@pytest.mark.skipif(not EMULATOR, reason="needs the emulator of onnxruntime-qnn, for x86-64 Linux only")
def test_the_emulator_serves_it_as_the_networks_own_bundle(checkpoint: Path, tmp_path: Path) -> None:
    """Compiled to context binaries, described from them, served by the engine."""
    recipe = Recipe(parts=1, shapes=(StepShape(8, 56),), table="float32").for_emulator(64)
    own = replace(recipe, table="", parts=2)
    found = []
    for name, each in (("geniex", recipe), ("own", own)):
        made = generate(checkpoint, tmp_path / name, each)
        compile_generated(made, tmp_path / f"{name}.scratch")
        folder = convert_folder(made.folder, tmp_path / "cache")
        found.append(emulated_service(folder, PROMPTS, 6, tmp_path))
    assert found[0] == found[1]
    assert all(len(tokens) == 6 for tokens in found[0].values())


@pytest.mark.skipif(not EMULATOR, reason="needs the emulator of onnxruntime-qnn, for x86-64 Linux only")
def test_our_compiler_writes_it(tmp_path: Path) -> None:
    """`--split host+lmhead` serves as it is, as a GenieX folder without our manifest, and as with the table inside."""
    options = ("--quant", "fp16", "--rows", "32", "--split")
    inside = compile_demo(tmp_path / "inside", *options, "lmhead")
    outside = compile_demo(tmp_path / "outside", *options, "host+lmhead")
    config = json.loads((outside / "genie_config.json").read_text())
    assert config["dialog"]["embedding"]["lut-path"] == TABLE
    assert json.loads((outside / "metadata.json").read_text())["runtime"] == "geniex_qairt"
    folder = tmp_path / "geniex"
    shutil.copytree(outside, folder, ignore=shutil.ignore_patterns("manifest.json", "*.onnx"))
    found = [
        emulated_service(bundle, PROMPTS, 5, tmp_path)
        for bundle in (inside, outside, convert_folder(folder, tmp_path / "cache"))
    ]
    assert found[0] == found[1] == found[2]
