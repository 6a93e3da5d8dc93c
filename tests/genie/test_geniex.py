"""Folders in the shape of GenieX: graphs that take embeddings, with the table of them beside the binaries."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import GraphKind, load_manifest
from engine.bundle.specs import TableSpec
from engine.bundle.tensors import embedding_width
from engine.compile.arguments import CompileArguments, Quant, Split
from engine.compile.plan import check_arguments
from engine.config import EngineConfig
from engine.errors import BundleError, CompileError
from engine.genie.convert import Toolbox
from engine.request import Request, SamplingParams
from engine.sources.resolve import convert_folder
from engine.worker.assembly import assemble
from tests.genie.generator import Recipe, embedding_table, generate
from tests.genie.served import served
from tests.genie.twin import convert_to_twin

ONE = Recipe(parts=1, precision="twin", table="float32")
Change = Callable[[dict[str, object], Path], object]

PROMPTS = {"a": [5, 17, 99, 123, 300, 42, 7, 8, 9, 10, 11], "b": [301, 7, 5], "c": [7], "d": list(range(20, 41))}


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(parts=1, precision="twin", table="float32"),
        Recipe(parts=3, precision="twin", table="float32", head_alone=True),
        Recipe(parts=2, precision="w4", table="float32"),
        Recipe(parts=2, precision="w4a16", table="float32"),
        Recipe(parts=2, precision="w4a16", table="ufixed16", same_hidden_names=False),
        Recipe(parts=2, precision="w4a16", table="float32", order="apart"),
    ],
    ids=["one part", "a lone head", "half precision", "integers", "an integer table", "parts apart"],
)
def test_embeddings_looked_up_on_the_host(checkpoint: Path, tmp_path: Path, recipe: Recipe) -> None:
    folder = convert_to_twin(generate(checkpoint, tmp_path / "bundle", recipe), tmp_path / "cache")
    manifest = load_manifest(folder)
    check_contract(manifest)
    assert manifest.embedding is not None
    assert manifest.embedding.file in manifest.files
    assert GraphKind.LUT not in {graph.kind for graph in manifest.graphs}
    assert embedding_width(manifest) == 64
    own = replace(recipe, table="", parts=recipe.parts + 1)  # the same network with the table in a graph
    expected = convert_to_twin(generate(checkpoint, tmp_path / "own", own), tmp_path / "cache")
    assert served(folder, PROMPTS, 12) == served(expected, PROMPTS, 12)


TABLE = "embedding_weights.raw"
WRONG: dict[str, tuple[Change, str]] = {
    "no table": (lambda section, folder: (folder / TABLE).unlink(), f"has no {TABLE}, the table of what its graphs"),
    "half a row": (
        lambda section, folder: (folder / TABLE).write_bytes(bytes(384 * 64 * 4 + 4)),
        f"{TABLE} has 98308 bytes; 384 tokens or more of 64 float32 are multiples of 256, at least 98304",
    ),
    "too few rows": (lambda section, folder: (folder / TABLE).write_bytes(bytes(256)), f"{TABLE} has 256 bytes; 384"),
    "another width": (lambda section, folder: section.update(size=32), "whose rows, context and model want"),
    "no width": (lambda section, folder: section.pop("size"), r"dialog\.embedding\.size must say how many numbers"),
    "another type": (
        lambda section, folder: section.update(datatype="native"),
        r"dialog\.embedding\.datatype must be float32 or ufixed8 or ufixed16, not 'native'",
    ),
    "a callback": (
        lambda section, folder: section.update(type="callback"),
        r"dialog\.embedding\.type must be 'lut', not 'callback': a callback cannot be called",
    ),
    "integers without a scale": (
        lambda section, folder: section.update(datatype="ufixed16"),
        r"dialog\.embedding\.quant-param must have a scale above 0 and an integer offset, they are None and None",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_does_not_fit(checkpoint: Path, tmp_path: Path, case: str) -> None:
    change, message = WRONG[case]
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=1, table="float32"))
    path = made.folder / "genie_config.json"
    document = json.loads(path.read_text())
    change(document["dialog"]["embedding"], made.folder)
    path.write_text(json.dumps(document))
    tools = Toolbox(lambda found: made.infos[found.name], "")
    with pytest.raises(BundleError, match=message):
        check_contract(load_manifest(convert_folder(made.folder, tmp_path / "cache", tools)))


def test_the_usual_name_of_the_table(checkpoint: Path, tmp_path: Path) -> None:
    """Some configurations tell the width alone."""
    made = generate(checkpoint, tmp_path / "bundle", Recipe(parts=1, precision="twin", table="float32"))
    path = made.folder / "genie_config.json"
    document = json.loads(path.read_text())
    document["dialog"]["embedding"] = {"version": 1, "size": 64, "datatype": "float32"}
    path.write_text(json.dumps(document))
    manifest = load_manifest(convert_to_twin(made, tmp_path / "cache"))
    assert manifest.embedding == TableSpec(TABLE, "float32", 64)


def test_prompts_as_embeddings(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert_to_twin(generate(checkpoint, tmp_path / "bundle", ONE), tmp_path / "cache")
    prompt = PROMPTS["a"]
    embeds = embedding_table(checkpoint)[prompt].astype("<f4").tobytes()
    made = assemble(EngineConfig(bundle=str(folder)))
    made.loop.add(Request("a", (0,) * len(prompt), SamplingParams(12, temperature=0.0), prompt_embeds=embeds), (), 1, 0)
    found: list[int] = []
    while made.loop.scheduler.has_work:
        found += [token for event in made.loop.step().events for token in event.token_ids]
    made.loop.close()
    made.runtime.close()
    assert found == served(folder, {"a": prompt}, 12)["a"]


def test_a_table_on_the_host_is_for_an_npu(checkpoint: Path, tmp_path: Path) -> None:
    wanted = CompileArguments(
        checkpoint, tmp_path / "out", quant=Quant.FP32, split=Split.HOST_LMHEAD, rows=(1,), context=(64,)
    )
    with pytest.raises(CompileError, match=r"--split host\+lmhead is for an NPU"):
        check_arguments(wanted)
