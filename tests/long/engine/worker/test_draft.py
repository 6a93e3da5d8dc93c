"""A draft bundle beside a served one, on real graphs: opened, compared, and of no influence on any token."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import Manifest, describe_file, load_manifest, save_manifest
from engine.bundle.specs import RecurrentSpec
from engine.bundle.variant import ShapeTable
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Request, SamplingParams
from engine.runtime.interface import Runtime
from engine.speculation.draft_models import DraftModel
from engine.worker.assembly import _open_draft, assemble, choose_shapes, open_onnx
from tests.bundles import Bundles
from tools.random_checkpoint import SHAPES, write_checkpoint

PROMPTS = tuple(tuple((5 * index + 31 * salt) % 250 for index in range(20 + 9 * salt)) for salt in range(3))
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 5}


def answers(config: EngineConfig, **params: object) -> tuple[dict[str, list[int]], int, int]:
    """Tokens by request, steps of the served model, and tokens that the draft model got right."""
    assembled = assemble(config)
    loop, found = assembled.loop, {}
    try:
        for index, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(max_tokens=40, **{"temperature": 0.0, **params})  # type: ignore[arg-type]
            loop.add(Request(str(index), prompt, sampling), (), seed=5, now_s=0.0)
            found[str(index)] = []
        while loop.scheduler.has_work:
            for event in loop.step().events:
                found[event.id] += event.token_ids
        stats = loop.stats()
        return found, stats.steps, stats.draft_accepted
    finally:
        loop.close()
        assembled.runtime.close()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of other weights with the same tokenizer."""
    folder = tmp_path_factory.mktemp("stranger")
    write_checkpoint(folder / "checkpoint", SHAPES["tiny"], seed=99)
    arguments = CompileArguments(folder / "checkpoint", folder / "bundle", quant=Quant.FP32, layout=Layout.SEGMENTS)
    compile_bundle(arguments, SilentProgress())
    return folder / "bundle"


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("own", ["segments", "free", "fixed"])
@pytest.mark.parametrize("served", ["segments", "fixed"])
def test_one_shape_for_every_step_the_same_bits(
    bundles: Bundles, served: str, own: str, params: dict[str, object]
) -> None:
    config = EngineConfig(bundle=str(bundles(served)), deterministic=True)
    plain, steps, _ = answers(config, **params)
    guessed, fewer, accepted = answers(replace(config, draft=str(bundles(own)), draft_tokens=4), **params)
    assert guessed == plain
    # The pool of the fixed one has columns for one of the three.
    assert (fewer < 0.5 * steps and accepted > 70) or (own == "fixed" and accepted > 20)


def test_a_model_of_other_weights_changes_no_token(bundles: Bundles, stranger: Path) -> None:
    config = EngineConfig(bundle=str(bundles("segments")), deterministic=True)
    plain, _, _ = answers(config, **SAMPLED)
    guessed, _, accepted = answers(replace(config, draft=str(stranger)), **SAMPLED)
    assert guessed == plain
    assert accepted < 40


def test_measured_prices_decide_and_the_answers_are_there(bundles: Bundles, tmp_path: Path) -> None:
    config = EngineConfig(bundle=str(bundles("segments")), draft=str(bundles("free int8")), cost_cache=str(tmp_path))
    found, _, _ = answers(config)
    assert {len(tokens) for tokens in found.values()} == {40}
    assert len(list(tmp_path.glob("costs-*.json"))) == 2


def test_the_draft_is_a_stage_of_the_start(bundles: Bundles) -> None:
    assembled = assemble(EngineConfig(bundle=str(bundles("fixed")), draft=str(bundles("free")), draft_tokens=3))
    try:
        drafter = assembled.loop._drafter
        assert isinstance(drafter, DraftModel)
        assert drafter.most == 3
    finally:
        assembled.loop.close()
        assembled.runtime.close()


def write_tokenizer(folder: Path, text: str) -> None:
    """Another tokenizer.json that the manifest knows."""
    manifest = load_manifest(folder)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    files = manifest.files | {"tokenizer.json": describe_file(folder / "tokenizer.json")}
    save_manifest(folder, msgspec.structs.replace(manifest, files=files))


def other_tokens(content: dict[str, object]) -> None:
    model = content["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    first, second = list(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def no_model(content: dict[str, object]) -> None:
    del content["model"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_tokens, r"draft: \S+ has other tokens than \S+: 0 is '.' there and '.' here; both must"),
        (no_model, r"draft: .*tokenizer.json is no tokenizer.json whose tokens can be compared"),
    ],
)
def test_other_tokens_are_refused_by_name(
    bundles: Bundles, tmp_path: Path, change: Callable[[dict[str, object]], None], said: str
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(bundles("free"), folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    write_tokenizer(folder, json.dumps(content))
    with pytest.raises(BundleError, match=said):
        assemble(EngineConfig(bundle=str(bundles("fixed")), draft=str(folder)))


def test_a_tokenizer_written_in_another_way_is_the_same(bundles: Bundles, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(bundles("free"), folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    write_tokenizer(folder, json.dumps(content, indent=7))
    assembled = assemble(EngineConfig(bundle=str(bundles("fixed")), draft=str(folder)))
    assembled.loop.close()
    assembled.runtime.close()


def test_what_is_no_bundle_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        assemble(EngineConfig(bundle=str(bundles("fixed")), draft=str(tmp_path)))


@pytest.fixture(scope="module")
def whole(bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "bundle"
    arguments = CompileArguments(bundles.source, folder, quant=Quant.FP32, parity_tokens=96, whole_context=(128,))
    compile_bundle(arguments, SilentProgress())
    return folder


def test_graphs_without_a_past_may_guess_and_be_guessed_for(bundles: Bundles, whole: Path) -> None:
    for served, own in ((bundles("segments"), whole), (whole, bundles("free"))):
        config = EngineConfig(bundle=str(served), deterministic=True)
        plain, steps, _ = answers(config)
        guessed, fewer, accepted = answers(replace(config, draft=str(own), draft_tokens=4))
        assert guessed == plain
        assert fewer < 0.6 * steps
        assert accepted > 60


@pytest.mark.parametrize("setting", ["draft", "lookup_rows"])
def test_graphs_without_a_past_need_no_padding_for_guesses(bundles: Bundles, whole: Path, setting: str) -> None:
    """Their steps have as many rows as are asked for, and take no longer for guesses."""
    config = EngineConfig(bundle=str(whole), lookup_rows=0)
    plain, steps, _ = answers(config)
    value: object = str(bundles("free")) if setting == "draft" else 4
    guessed, fewer, _ = answers(replace(config, **{setting: value}))  # type: ignore[arg-type]
    assert guessed == plain
    assert fewer < 0.9 * steps


def test_recurrent_layers_are_no_draft(bundles: Bundles, tmp_path: Path) -> None:
    folder = tmp_path / "recurrent"
    shutil.copytree(bundles("free"), folder)
    manifest = load_manifest(folder)
    model = msgspec.structs.replace(manifest.model, recurrent=RecurrentSpec((0,), 1, 1, 8, 8, 4))
    save_manifest(folder, msgspec.structs.replace(manifest, model=model))
    with pytest.raises(BundleError, match=r"draft: \S+ has recurrent layers, whose state cannot go back"):
        assemble(EngineConfig(bundle=str(bundles("fixed")), draft=str(folder)))


def test_a_draft_with_a_forecast_prefix_has_its_columns_for_itself(bundles: Bundles) -> None:
    """Its blocks begin with the first column, where the prefix would lie."""
    asked: list[EngineConfig] = []

    def noted(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
        asked.append(config)
        return open_onnx(folder, manifest, shapes, config)

    config = EngineConfig(bundle=str(bundles("fixed")), draft=str(bundles("fixed")))
    manifest = load_manifest(bundles("fixed"))
    _open_draft(bundles("fixed"), manifest, choose_shapes(manifest, config), config, noted).close()
    assert config.forecast and [each.forecast for each in asked] == [False]
