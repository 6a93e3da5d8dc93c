"""Graphs that carry windows and states from run to run: one sequence a run, any number at a time."""

from pathlib import Path

import pytest

from engine.bundle.variant import StepShape
from engine.sources.resolve import convert_folder
from tests.genie.emulator import EMULATOR, compile_generated, emulated_service
from tests.genie.generator import Recipe, generate
from tests.genie.geniex_edges import WINDOW
from tests.genie.served import served
from tests.genie.test_carried import PROMPTS
from tests.genie.twin import convert_to_twin


@pytest.mark.skipif(not EMULATOR, reason="needs the emulator of onnxruntime-qnn, for x86-64 Linux only")
def test_the_emulator_serves_windows(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision, from context binaries: eight columns of a window give what all columns under its mask give."""
    found = []
    for columns in (WINDOW, 56):
        monkeypatch.setattr("tests.genie.generator.WINDOW", columns)
        recipe = Recipe(
            parts=1, precision="w4", table="float32", beside="windows", shapes=(StepShape(8, 56),)
        ).for_emulator(64)
        made = generate(checkpoint, tmp_path / f"{columns}", recipe)
        compile_generated(made, tmp_path / f"{columns}.scratch")
        folder = convert_folder(made.folder, tmp_path / "cache")
        found.append(emulated_service(folder, PROMPTS, 6, tmp_path))
    assert found[0] == found[1]
    assert all(len(tokens) == 6 for tokens in found[0].values())


@pytest.mark.skipif(not EMULATOR, reason="needs the emulator of onnxruntime-qnn, for x86-64 Linux only")
@pytest.mark.parametrize("beside", ["states", "layers", "windows layers"])
def test_the_emulator_serves_states_and_inputs_of_layers(checkpoint: Path, tmp_path: Path, beside: str) -> None:
    """Context binaries give the tokens that the same graphs give on the CPU, whose own test has the definition."""
    recipe = Recipe(parts=1, precision="twin", table="float32", beside=beside, shapes=(StepShape(8, 56),))
    twin = convert_to_twin(generate(checkpoint, tmp_path / "twin", recipe), tmp_path / "cache")
    made = generate(checkpoint, tmp_path / "binaries", recipe.for_emulator(64))
    compile_generated(made, tmp_path / "scratch")
    folder = convert_folder(made.folder, tmp_path / "cache")
    found = emulated_service(folder, PROMPTS, 6, tmp_path)
    assert found == served(twin, PROMPTS, 6)
    assert all(len(tokens) == 6 for tokens in found.values())
