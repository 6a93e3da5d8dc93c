"""A bundle reads its own sample prompt when it is loaded: what its exporter says of it, and what its graphs do."""

import json
import logging
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.demo.location import SHIPPED
from engine.genie.convert import Toolbox
from engine.runtime.reading import SelfCheck
from engine.sources.resolve import convert_folder
from tests.genie.generator import Generated, Recipe, generate
from tests.genie.served import served
from tests.genie.twin import convert_to_twin
from tools.random_checkpoint import Qwen3Shape, write_checkpoint

PROMPT = "Once upon a time there was a little town by the sea, where people lived from fishing and from"
SHAPES = (StepShape(1, 95), StepShape(32, 64))
PLAIN = Recipe(parts=1, precision="twin", table="float32", shapes=SHAPES)


def made_of(checkpoint: Path, folder: Path, recipe: Recipe = PLAIN) -> Generated:
    made = generate(checkpoint, folder / "bundle", recipe)
    (made.folder / "sample_prompt.txt").write_text(PROMPT)
    return made


def warned(made: Generated, cache: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What is said of a folder when it is loaded."""
    folder = convert_to_twin(made, cache)
    sample = load_manifest(folder).sample
    assert sample is not None and len(sample.ids) >= 4
    with caplog.at_level(logging.WARNING):
        served(folder, {"a": [5, 6, 7]}, 2)
    return "\n".join(record.getMessage() for record in caplog.records if "answer wrongly" in record.getMessage())


def test_a_sound_bundle_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The embedded model knows English."""
    assert warned(made_of(SHIPPED["demo"](), tmp_path), tmp_path / "cache", caplog) == ""


def test_a_bundle_whose_graphs_disagree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its graph of one row is another network's: answers begin well and go on as noise."""
    shape = Qwen3Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn=96, vocab=384, max_position=512)
    for seed in (1, 2):
        write_checkpoint(tmp_path / f"checkpoint {seed}", shape, seed=seed)
    made, other = (made_of(tmp_path / f"checkpoint {seed}", tmp_path / str(seed)) for seed in (1, 2))
    (models,), (others,) = made.models.values(), other.models.values()
    models.update({name: model for name, model in others.items() if "ar1_" in name})
    said = warned(made, tmp_path / "cache", caplog)
    assert "bundle may answer wrongly: its graphs disagree about its own sample prompt" in said


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (SelfCheck(2.0, 0.99, 384), []),
        (SelfCheck(2.0, None, 384), []),
        (SelfCheck(6.0, 0.99, 384), ["no better than chance (6.0 nats a token, chance has 6.0)"]),
        (SelfCheck(float("nan"), float("nan"), 384), ["no better than chance (nan", "correlate by nan"]),
        (SelfCheck(6.0, 0.99, 384, drift=0.19), []),
        (SelfCheck(6.0, 0.99, 384, drift=2.5), ["a token of its sample costs 2.50 nats more or less, 0.2 is the most"]),
        (SelfCheck(2.0, 0.2, 384), ["logits of many rows and of one correlate by 0.20, 0.9 is the least"]),
    ],
)
def test_what_is_said(check: SelfCheck, said: list[str]) -> None:
    found = check.warnings()
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_metadata_that_says_otherwise(checkpoint: Path, tmp_path: Path) -> None:
    """The binaries are served, but that one of the two is wrong is worth a line."""
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=1, table="float32"))
    (info,) = made.infos.values()
    told = {}
    for graph in info.graphs:
        tensors = {}
        for tensor in graph.inputs:
            assert tensor.encoding is not None
            parameters = {"scale": tensor.encoding.scales[0], "zero_point": -tensor.encoding.offsets[0]}
            tensors[tensor.name] = {"shape": list(tensor.shape), "quantization_parameters": parameters}
        told[graph.name] = {"inputs": tensors, "outputs": {}}
    tools = Toolbox(lambda path: made.infos[path.name], "")
    path = made.folder / "metadata.json"
    for is_true in (True, False):
        if not is_true:
            told["token_ar1_cl64_1_of_1"]["inputs"]["position_ids_cos"]["quantization_parameters"]["scale"] = 1.0
            told["prompt_ar8_cl64_1_of_1"]["inputs"]["position_ids_sin"]["shape"] = [1, 1, 8, 32]
        path.write_text(json.dumps({"model_files": told}))
        sample = load_manifest(convert_folder(made.folder, tmp_path / "cache", tools)).sample
        assert is_true == (sample is None)
    assert sample is not None
    (line,) = sample.problems
    assert "position_ids_cos of token_ar1_cl64_1_of_1 is said to have the scale 1 and the zero point 32768, it" in line
    assert line.endswith("(and 1 more)")
