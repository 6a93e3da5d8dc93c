"""A Genie folder becomes a bundle in the cache: once, again when it changes, from a folder that cannot be written."""

from pathlib import Path

import msgspec
import onnx
import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import GraphKind, load_manifest
from engine.bundle.variant import StepShape, pin, shape_table
from engine.errors import BundleError
from engine.genie.convert import Toolbox, write_converted
from engine.genie.read import GenieBundle, read_genie
from engine.sources import resolve
from engine.sources.resolve import convert_folder, resolve_bundle
from engine.sources.retention import exclusive_if_free, lock_of
from tests.genie.generator import Generated, Recipe, generate


def tools(made: Generated) -> Toolbox:
    return Toolbox(lambda path: made.infos[path.name], "")


def test_the_bundle(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe(parts=4, head_alone=True))
    folder = convert_folder(made.folder, tmp_path / "cache", tools(made))
    manifest = load_manifest(folder)
    assert (manifest.name, manifest.target, manifest.quant, manifest.kv_dtype) == ("qwen", "x-elite", "w4a16", "uint8")
    assert manifest.max_context == 64
    assert shape_table(manifest, 0).fixed == (StepShape(1, 63), StepShape(8, 56))
    model = manifest.model
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim) == (3, 64, 4, 2, 32)
    assert [graph.name for graph in manifest.graphs] == [
        "ar1_cl64_1_of_2",
        "ar1_cl1_2_of_2",
        "ar8_cl64_1_of_2",
        "ar8_cl8_2_of_2",
    ]
    assert [graph.kind for graph in manifest.graphs] == [GraphKind.DECODER, GraphKind.LMHEAD] * 2
    assert manifest.npu is not None
    assert set(manifest.npu.shared) == set(made.models)
    wrapper = onnx.load(str(folder / "ar8_cl64_1_of_2.onnx"))
    assert [node.name for node in wrapper.graph.node] == [f"prompt_ar8_cl64_{part}_of_4" for part in (1, 2, 3)]
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".bin") == sorted(made.models)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(heads="_head_", scatter=True, index="uint32"),
        Recipe(kv_only_rows=(8,), head_alone=True, parts=4),
        Recipe(precision="w4", scatter=True, shapes=(StepShape(1, 15), StepShape(1, 63), StepShape(8, 56))),
        Recipe(precision="twin", parts=1),
    ],
)
def test_the_manifest_does_not_contradict_itself(checkpoint: Path, tmp_path: Path, recipe: Recipe) -> None:
    made = generate(checkpoint, tmp_path / "qwen", recipe)
    check_contract(load_manifest(convert_folder(made.folder, tmp_path / "cache", tools(made))))


def test_the_precision_is_the_exporters(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    (made.folder / "metadata.json").write_text('{"precision": "W8A16"}')
    assert load_manifest(convert_folder(made.folder, tmp_path / "cache", tools(made))).quant == "w8a16"


def test_a_folder_without_anything_but_the_tokenizer_and_genies_own_file(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "bare", Recipe(era="serialized", parts=5, head_alone=True))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "htp_backend_ext_config.json"):
        (made.folder / name).unlink(missing_ok=True)
    manifest = load_manifest(convert_folder(made.folder, tmp_path / "cache", tools(made)))
    assert (manifest.text.stop_ids, manifest.text.chat_template, manifest.target) == ((2,), None, "x-elite")
    assert (manifest.model.layers, manifest.model.hidden, manifest.model.kv_heads) == (3, 64, 2)


def test_variants_without_logits(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe(parts=4, head_alone=True, kv_only_rows=(8,)))
    manifest = load_manifest(convert_folder(made.folder, tmp_path / "cache", tools(made)))
    kinds = {graph.name: graph.kind for graph in manifest.graphs}
    assert kinds == {
        "ar1_cl64_1_of_2": GraphKind.DECODER,
        "ar1_cl1_2_of_2": GraphKind.LMHEAD,
        "ar8_cl64_1_of_1": GraphKind.DECODER_PREFILL,
    }
    shapes = shape_table(manifest, 0)
    assert (shapes.fixed, shapes.prefill, shapes.max_rows) == ((StepShape(1, 63),), (StepShape(8, 56),), 1)
    assert pin(shapes, 8).prefill == ()


def test_a_graph_without_logits_beside_one_that_gives_them(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    kv_only = generate(checkpoint, tmp_path / "KV-only", Recipe(kv_only_rows=(8,))).infos["part3_of_3.bin"].graphs
    last = made.infos["part3_of_3.bin"]
    extra = tuple(msgspec.structs.replace(graph, name=f"kv_{graph.name}") for graph in kv_only if "ar8" in graph.name)
    infos = {**made.infos, "part3_of_3.bin": msgspec.structs.replace(last, graphs=(*extra, *last.graphs))}
    plain, both = (read_genie(made.folder, lambda path, known=known: known[path.name]) for known in (made.infos, infos))
    assert both.manifest.graphs == plain.manifest.graphs
    assert both.wrappers == plain.wrappers


def test_it_is_made_once_until_the_source_changes(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    first = convert_folder(made.folder, tmp_path / "cache", tools(made))
    stamp = (first / "manifest.json").stat().st_mtime_ns
    assert convert_folder(made.folder, tmp_path / "cache", tools(made)) == first
    assert (first / "manifest.json").stat().st_mtime_ns == stamp
    (made.folder / "tokenizer_config.json").write_text("{}")
    second = convert_folder(made.folder, tmp_path / "cache", tools(made))
    assert second != first
    assert load_manifest(second).text.chat_template is None


def test_a_damaged_bundle_is_made_again(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    folder = convert_folder(made.folder, tmp_path / "cache", tools(made))
    (folder / "tokenizer.json").unlink()
    assert convert_folder(made.folder, tmp_path / "cache", tools(made)) == folder
    assert (folder / "tokenizer.json").is_file()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_one_writer_at_a_time(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of a process, which its draft is named by, can be that of another in another container."""
    made, cache = generate(checkpoint, tmp_path / "qwen", Recipe()), tmp_path / "cache"
    free: list[bool] = []

    def written(bundle: GenieBundle, draft: Path) -> None:
        with exclusive_if_free(lock_of(draft.with_suffix(""))) as is_free:
            free.append(is_free)
        write_converted(bundle, draft)

    monkeypatch.setattr(resolve, "write_converted", written)
    folder = convert_folder(made.folder, cache, tools(made))
    assert free == [False] and list(cache.iterdir()) == [folder]


def test_the_source_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    before = {path.name: path.stat().st_mtime_ns for path in made.folder.iterdir()}
    made.folder.chmod(0o500)
    try:
        convert_folder(made.folder, tmp_path / "cache", tools(made))
    finally:
        made.folder.chmod(0o700)
    assert {path.name: path.stat().st_mtime_ns for path in made.folder.iterdir()} == before


def test_serve_takes_the_folder(checkpoint: Path, tmp_path: Path) -> None:
    """Placeholders are no binaries: the message must come from reading them, so resolving led here."""
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    with pytest.raises(BundleError, match=r"part1_of_3\.bin|hexserve\[qnn\]"):
        resolve_bundle(str(made.folder), tmp_path / "cache")
    assert not list(tmp_path.glob("cache/qwen*"))


def test_a_cache_that_cannot_be_written(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BundleError, match=r"the bundle cache .* cannot be used"):
        convert_folder(made.folder, tmp_path / "cache", tools(made))


def test_links_share_the_bytes(checkpoint: Path, tmp_path: Path) -> None:
    made = generate(checkpoint, tmp_path / "qwen", Recipe())
    folder = convert_folder(made.folder, tmp_path / "cache", tools(made))
    assert (folder / "part1_of_3.bin").samefile(made.folder / "part1_of_3.bin")
