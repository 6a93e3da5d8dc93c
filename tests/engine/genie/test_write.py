"""What is written for Genie is what the reader understands."""

import json
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, NpuSpec, TensorSpec, TextSpec
from engine.bundle.model_spec import LayerAttention, ModelSpec, RopeSpec
from engine.errors import BundleError
from engine.genie.config import Fields, read_config
from engine.genie.extras import genie_rope
from engine.genie.read import read_chip
from engine.genie.write import write_genie_files
from tests.engine.tiny_bundle import byte_level_tokenizer

HASH = "QNNExecutionProvider_QNNExecutionProvider_1423339642609277203{}_1_0"
HIDDEN = TensorSpec("hidden_states", "uint16", (1, 1, 64), 0.5, 32768)


def graph(rows: int, context: int | None, part: int, kind: GraphKind) -> GraphSpec:
    name = f"ar{rows}_cl{context or rows}_{part}_of_2"
    return GraphSpec(name, f"{name}.onnx", kind, part, 2, (HIDDEN,), (HIDDEN,), rows, context)


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, Manifest]:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    graphs, chains, binaries = [], {}, {}
    for number, (rows, part) in enumerate([(1, 1), (32, 1), (1, 2), (32, 2)]):
        spec = graph(rows, 256 if part == 1 else None, part, GraphKind.DECODER if part == 1 else GraphKind.LMHEAD)
        name, file = HASH.format(number), f"part_{part}_of_2.bin"
        graphs.append(spec)
        chains[spec.name] = ((file, name),)
        binaries.setdefault(file, []).append(name)
        (tmp_path / spec.file).write_bytes(b"wrapper " + name.encode())
    for file, names in binaries.items():
        (tmp_path / file).write_bytes(b"\0".join(name.encode() for name in names))
    rope = RopeSpec("default", 1e6, 32, tuple(1e6 ** (-i / 16) for i in range(16)))
    manifest = Manifest(
        format_version=1,
        name="tiny",
        target="x-elite",
        quant="fp16",
        split="lmhead",
        created=0,
        model=ModelSpec("qwen3", 2, 64, 4, 2, 32, 96, 384, rope),
        graphs=tuple(graphs),
        kv_dtype="float16",
        max_context=256,
        text=TextSpec("tokenizer.json", None, (258, 259), "<|im_start|>", None, True),
        files={},
        versions={"hexserve": "1"},
        npu=NpuSpec(60, 73, {file: tuple(names) for file, names in binaries.items()}, chains, "v2.51"),
    )
    return tmp_path, manifest


def test_the_reader_understands_it(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    write_genie_files(folder, manifest)
    config = read_config(folder)
    assert config.binaries == ("part_1_of_2.bin", "part_2_of_2.bin")
    assert (config.context_tokens, config.vocabulary, config.eos_ids) == (256, 384, (258, 259))
    assert config.bos_id == byte_level_tokenizer().token_to_id("<|im_start|>")
    found = genie_rope(config, Fields({}, "x"), 32, 256)
    assert found.inverse_frequencies == pytest.approx(manifest.model.rope.inverse_frequencies)
    assert read_chip(folder) == (60, 73)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["chipset_attributes"] == {"soc_model": 60, "htp_version": 73}  # a number, as AI Hub's
    tensor = metadata["model_files"]["ar1_cl256_1_of_2"]["inputs"]["hidden_states"]
    assert tensor["quantization_parameters"] == {"scale": 0.5, "zero_point": 32768}


def test_parts_get_names_that_genie_can_order(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    made = write_genie_files(folder, manifest).npu
    assert made is not None
    names = [name for inside in made.binaries.values() for name in inside]
    assert [name.split("_", 1)[1] for name in names] == [
        "ar1_cl256_1_of_2",
        "ar32_cl256_1_of_2",
        "ar1_cl256_2_of_2",
        "ar32_cl256_2_of_2",
    ]
    for file, inside in made.binaries.items():
        assert (folder / file).read_bytes().split(b"\0") == [name.encode() for name in inside]
    for spec in manifest.graphs:
        assert (folder / spec.file).read_bytes() == b"wrapper " + made.chains[spec.name][0][1].encode()
    again = write_genie_files(folder, msgspec.structs.replace(manifest, npu=made))
    assert again.npu == made


def test_one_part_keeps_its_names(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    assert manifest.npu is not None
    alone = msgspec.structs.replace(manifest, graphs=manifest.graphs[:2])
    assert write_genie_files(folder, alone).npu == manifest.npu


def test_no_bos_and_no_end_are_told_as_such(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    text = TextSpec("tokenizer.json", None, ())
    write_genie_files(folder, msgspec.structs.replace(manifest, text=text))
    context = json.loads((folder / "genie_config.json").read_text())["dialog"]["context"]
    assert (context["bos-token"], context["eos-token"]) == (-1, [-1])


def test_a_scaled_rotation_needs_the_checkpoints_numbers(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    rope = msgspec.structs.replace(manifest.model.rope, kind="llama3", theta=5e5)
    scaled = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, rope=rope))
    with pytest.raises(BundleError, match=r"the rotation is scaled \(llama3\)"):
        write_genie_files(folder, scaled)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_genie_files(folder, scaled, {"rope_scaling": {**scaling, "original_max_position_embeddings": 8192}})
    found = genie_rope(read_config(folder), Fields({}, "x"), 32, 256)
    assert (found.kind, found.theta) == ("llama3", 5e5)


def test_a_rotation_that_genie_has_no_name_for_is_refused(bundle: tuple[Path, Manifest]) -> None:
    """A GGUF file lists what its frequencies are divided by."""
    folder, manifest = bundle
    rope = msgspec.structs.replace(manifest.model.rope, kind="factors")
    listed = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, rope=rope))
    with pytest.raises(BundleError, match="scaled by factors"):
        write_genie_files(folder, listed, {"rope_parameters": {"rope_type": "factors", "factors": [1.0] * 16}})


def test_windows_over_the_cache_of_all_layers_are_refused(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    model = msgspec.structs.replace(manifest.model, attention=(LayerAttention(16), LayerAttention()))
    with pytest.raises(BundleError, match="windows only where these have caches of their own"):
        write_genie_files(folder, msgspec.structs.replace(manifest, model=model))


def wider(manifest: Manifest, contexts: dict[int, int]) -> Manifest:
    """The same with another body graph for each rows -> context."""
    assert manifest.npu is not None
    graphs = [graph(rows, context, 1, GraphKind.DECODER) for rows, context in contexts.items()]
    chains = {spec.name: (("part_1_of_2.bin", HASH.format(8 + place)),) for place, spec in enumerate(graphs)}
    npu = msgspec.structs.replace(manifest.npu, chains={**manifest.npu.chains, **chains})
    return msgspec.structs.replace(manifest, graphs=(*manifest.graphs, *graphs), npu=npu)


def test_a_head_for_several_contexts_gets_a_copy_for_each(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    wide = wider(manifest, {1: 512, 32: 512})
    for spec in wide.graphs[-2:]:
        name = wide.npu.chains[spec.name][0][1]  # type: ignore[union-attr]
        (folder / spec.file).write_bytes(name.encode())
    write_genie_files(folder, wide)
    names = [(folder / file).read_bytes().split(b"\0") for file in ("part_2_of_2.bin", "part_2_of_2_for_cl256.bin")]
    assert [[name[-17:].strip(b"_hexsrv") for name in inside] for inside in names] == [
        [b"ar1_cl512_2_of_2", b"ar32_cl512_2_of_2"],
        [b"ar1_cl256_2_of_2", b"ar32_cl256_2_of_2"],
    ]
    config = read_config(folder)
    assert config.binaries == ("part_1_of_2.bin", "part_2_of_2.bin", "part_2_of_2_for_cl256.bin")
    assert config.context_tokens == 512


def test_what_genie_could_not_run_is_refused_before_anything_is_written(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    with pytest.raises(BundleError, match=r"cannot be copied as part_2_of_2_for_cl256\.bin: not every number of rows"):
        write_genie_files(folder, wider(manifest, {1: 512}))
    with pytest.raises(BundleError, match="has no context binaries"):
        write_genie_files(folder, msgspec.structs.replace(manifest, npu=None))
    assert [path.name for path in folder.glob("*.json")] == ["tokenizer.json"]
