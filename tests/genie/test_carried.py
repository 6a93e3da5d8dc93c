"""Graphs that carry windows and states from run to run: one sequence a run, any number at a time."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.model_spec import RopeSpec
from engine.bundle.variant import StepShape, shape_table
from engine.errors import BundleError, StepFailed
from engine.genie.convert import Toolbox
from engine.runtime.interface import RowLayout
from engine.runtime.opening import open_generator
from engine.runtime.sessions import cpu_provider
from engine.sources.resolve import convert_folder
from tests.genie.generator import Generated, Recipe, embedding_table, generate
from tests.genie.geniex_edges import LOCAL_THETA, WINDOW, layer_table, tell_windows
from tests.genie.served import served
from tests.genie.twin import convert_to_twin

PROMPTS = {"a": [5, 17, 99, 123, 300, 42, 7, 8, 9, 10, 11], "b": [301, 7, 5], "c": [7], "d": list(range(20, 41))}
COUNT = 12
SHAPES = (StepShape(1, 63), StepShape(8, 56))


def made_of(checkpoint: Path, folder: Path, beside: str, shapes: tuple[StepShape, ...] = SHAPES) -> Generated:
    return generate(
        checkpoint, folder / "bundle", Recipe(parts=1, precision="twin", table="float32", beside=beside, shapes=shapes)
    )


def greedy(
    made: Generated, manifest: Manifest, table: np.ndarray, prompt: Sequence[int], wide: bool, count: int = COUNT
) -> list[int]:
    """Token by token over the graph of one row; windows as wide as the past if `wide`, and masked."""
    (models,) = made.models.values()
    model = next(model for name, model in models.items() if "ar1_" in name)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes = {item.name: item.shape for item in session.get_inputs()}
    carried = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name.endswith("_in")}
    tokens = list(prompt)
    for done in range(len(prompt) + count - 1):
        feed = {**carried, "inputs_embeds": table[tokens[done]][None, None]}
        feed["attention_mask"] = _mask(shapes["attention_mask"], done, done + 1)
        feed |= _turned("", manifest.model.rope, done)
        if wide:
            feed["swa_attention_mask"] = _mask(shapes["swa_attention_mask"], done, WINDOW)
            assert manifest.model.local_rope is not None
            feed |= _turned("swa_", manifest.model.local_rope, done)
        names = [item.name for item in session.get_outputs()]
        out = dict(zip(names, session.run(names, {name: feed[name] for name in shapes}), strict=True))
        for name, array in carried.items():
            given = out[name.replace("_in", "_out")]
            if "state" in name:
                array[...] = given
            elif "key" in name:
                array[..., done] = given[..., 0]
            else:
                array[..., done, :] = given[..., 0, :]
        if done + 1 == len(tokens):
            tokens.append(int(out["logits"][0, 0].argmax()))
    return tokens[len(prompt) :]


def _mask(shape: Sequence[int], done: int, window: int) -> np.ndarray:
    columns = np.arange(shape[-1] - 1)
    seen = np.append((columns < done) & (columns > done - window), True)
    return np.where(seen, 0, -1000).astype(np.float32).reshape(shape)


def _turned(prefix: str, rope: RopeSpec, position: int) -> Mapping[str, np.ndarray]:
    angles = position * np.array(rope.inverse_frequencies)
    turns = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {f"{prefix}position_ids_{name}": value.astype(np.float32)[None, None, None] for name, value in turns.items()}


def test_windows_of_columns(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight columns hold what eight tokens back is seen of; the reference keeps all and masks them."""
    made = made_of(checkpoint, tmp_path, "windows")
    folder = convert_to_twin(made, tmp_path / "cache")
    manifest = load_manifest(folder)
    check_contract(manifest)
    assert (manifest.window, manifest.is_serial) == (WINDOW, True)
    assert manifest.model.local_rope is not None and manifest.model.local_rope.theta == LOCAL_THETA
    monkeypatch.setattr("tests.genie.generator.WINDOW", 63)
    whole = made_of(checkpoint, tmp_path / "whole", "windows")
    table = embedding_table(checkpoint)
    expected = {name: greedy(whole, manifest, table, prompt, wide=True) for name, prompt in PROMPTS.items()}
    assert served(folder, PROMPTS, COUNT) == expected
    assert served(folder, PROMPTS, COUNT, deterministic=True) == expected


def test_recurrent_states(checkpoint: Path, tmp_path: Path) -> None:
    made = made_of(checkpoint, tmp_path, "states")
    folder = convert_to_twin(made, tmp_path / "cache")
    manifest = load_manifest(folder)
    check_contract(manifest)
    assert manifest.is_serial and manifest.model.layers == 4
    table = embedding_table(checkpoint)
    expected = {name: greedy(made, manifest, table, prompt, wide=False) for name, prompt in PROMPTS.items()}
    assert served(folder, PROMPTS, COUNT) == expected


def test_a_sequence_up_to_the_last_column(checkpoint: Path, tmp_path: Path) -> None:
    """The rows of the wide graph do not fit behind 24 tokens: the last ones go one by one."""
    shapes = (StepShape(1, 31), StepShape(8, 24))
    made = made_of(checkpoint, tmp_path, "states", shapes)
    folder = convert_to_twin(made, tmp_path / "cache")
    prompt = list(range(40, 68))
    manifest = load_manifest(folder)
    expected = greedy(made, manifest, embedding_table(checkpoint), prompt, wide=False, count=4)
    assert served(folder, {"a": prompt}, COUNT)["a"] == expected


def test_rows_that_nobody_sampled_from_come_again(checkpoint: Path, tmp_path: Path) -> None:
    """A mask of a grammar that is late leaves a step without a token: next come its rows, or all but the last."""
    folder = convert_to_twin(made_of(checkpoint, tmp_path, "states"), tmp_path / "cache")
    manifest = load_manifest(folder)
    runtime = open_generator(folder, manifest, shape_table(manifest, 8), cpu_provider(1))

    def read(owner: str, past: int, *tokens: int, wanted: bool = True) -> np.ndarray:
        layout = RowLayout(StepShape(8, 64), len(tokens))
        layout.add(tokens, past, (0,), past, logits=[len(tokens) - 1] if wanted else [], owner=owner)
        return runtime.run(layout.batch(64)).decoded().copy()

    read("a", 0, 5, 17, 99)
    first = read("a", 3, 123, 300)
    assert (read("a", 3, 123, 300) == first).all()
    assert not len(read("a", 3, 123, wanted=False))
    assert (read("a", 4, 300) == first).all()
    assert np.allclose(read("a", 5, 42), read("b", 0, 5, 17, 99, 123, 300, 42), atol=1e-4)
    with pytest.raises(StepFailed, match="a has no state of its first 4 tokens"):
        read("a", 4, 300)
    runtime.close()


@pytest.mark.parametrize("windows", ["", "windows"])
def test_inputs_of_every_layer(checkpoint: Path, tmp_path: Path, windows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added to a token here, so the network is one with another table; with windows it is as Gemma 4's."""
    made = made_of(checkpoint, tmp_path, f"{windows} layers".strip())
    folder = convert_to_twin(made, tmp_path / "cache")
    manifest = load_manifest(folder)
    check_contract(manifest)
    assert manifest.layer_embedding is not None and manifest.is_serial == bool(windows)
    table = embedding_table(checkpoint)
    beside = layer_table(len(table), 3, table.shape[1]).reshape(len(table), 3, -1).mean(axis=1)
    monkeypatch.setattr("tests.genie.generator.WINDOW", 63)
    plain = made_of(checkpoint, tmp_path / "plain", windows)
    expected = {
        name: greedy(plain, manifest, table + beside, prompt, wide=bool(windows)) for name, prompt in PROMPTS.items()
    }
    assert served(folder, PROMPTS, COUNT) == expected


def test_the_list_of_rotations(checkpoint: Path, tmp_path: Path) -> None:
    """Genie from 2.48 on has a list with prefixes where GenieX has two keys."""
    two, one = (made_of(checkpoint, tmp_path / name, "windows") for name in ("two", "one"))
    Path(one.folder / "genie_config.json").write_text(
        Path(two.folder / "genie_config.json").read_text().replace("local-positional-encoding", "ignored")
    )
    with pytest.raises(BundleError, match=r"no positional encoding of the layers that see a window \(prefix swa_\)"):
        convert_folder(one.folder, tmp_path / "cache", Toolbox(lambda path: one.infos[path.name], ""))
    plain = made_of(checkpoint, tmp_path / "plain", "")
    Path(one.folder / "genie_config.json").write_text(Path(plain.folder / "genie_config.json").read_text())
    tell_windows(one.folder, is_geniex=False)
    found = [
        load_manifest(convert_folder(each.folder, tmp_path / "cache", Toolbox(lambda path: one.infos[path.name], "")))
        for each in (one, two)
    ]
    assert found[0].model.local_rope == found[1].model.local_rope
    assert found[0].model.rope == found[1].model.rope


def test_a_model_that_sees_answers_text(checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Qwen3-VL's text graphs take image features: none are given, and the log says that images are not read."""
    made = made_of(checkpoint, tmp_path, "images")
    (made.folder / "vision_encoder.bin").write_bytes(b"not looked at")
    with caplog.at_level(logging.WARNING):
        folder = convert_to_twin(made, tmp_path / "cache")
    said = "bundle has an encoder of images, which is not served (metadata.json tells no vision_preprocessing"
    assert any(message.startswith(said) for message in caplog.messages)
    plain = convert_to_twin(made_of(checkpoint, tmp_path / "plain", ""), tmp_path / "cache")
    assert served(folder, PROMPTS, COUNT) == served(plain, PROMPTS, COUNT)


def test_the_configuration_of_a_pipelines_text_generator(checkpoint: Path, tmp_path: Path) -> None:
    made = made_of(checkpoint, tmp_path, "")
    path = made.folder / "genie_config.json"
    path.write_text(path.read_text().replace('"dialog"', '"text-generator"'))
    folder = convert_folder(made.folder, tmp_path / "cache", Toolbox(lambda path: made.infos[path.name], ""))
    assert load_manifest(folder).embedding is not None


def test_what_one_sequence_a_run_cannot_do(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_to_twin(made_of(checkpoint, tmp_path, "states"), tmp_path / "cache")
    plain = convert_to_twin(made_of(checkpoint, tmp_path / "plain", ""), tmp_path / "cache")
    with pytest.raises(BundleError, match=r"lookup_rows = 2: qwen3 has recurrent layers, whose state cannot take back"):
        served(folder, {}, COUNT, lookup_rows=2)
    with pytest.raises(BundleError, match=r"draft: bundle runs one sequence at a time, whose state cannot go back"):
        served(plain, {}, COUNT, draft=str(folder))
