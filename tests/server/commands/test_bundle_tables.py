"""`describe` draws what the manifest says."""

import io
import shutil
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from engine.bundle.manifest import load_manifest, save_manifest
from engine.bundle.specs import UsualSampling
from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import BundleError
from server.commands.bundle_tables import describe
from tests.bundles import Bundles
from tests.call_formats import HERMES, THINK, answers
from tests.hybrid import Hybrid
from tests.tiny_encoder import write_encoder, write_pooling


def drawn(*arguments: object, **options: object) -> str:
    """The drawing as plain text."""
    stream = io.StringIO()
    Console(file=stream, width=130).print(describe(*arguments, **options))
    return stream.getvalue()


def test_free_bundle(free_bundle: Path) -> None:
    """Model, graphs, cache arithmetic, files and parity."""
    text = drawn(free_bundle)
    manifest = load_manifest(free_bundle)
    assert manifest.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    for expected in ("free_1_of_2", "decoder", "lmhead", "512 bytes a token", "top-1", "part_2_of_2.data", "free (any"):
        assert expected in text
    assert manifest.quality is None and "output errors" not in text
    assert manifest.kv_bytes_per_token == 512 and "524.3 kB" in text


def test_capabilities_are_those_of_the_template(free_bundle: Path, tmp_path: Path) -> None:
    """Tools and reasoning, where it renders such."""
    assert "capabilities  completion  " in drawn(free_bundle)
    bundle = shutil.copytree(free_bundle, tmp_path / "bundle")
    manifest = load_manifest(bundle)
    text = msgspec.structs.replace(manifest.text, answer=answers(HERMES, THINK))
    save_manifest(bundle, msgspec.structs.replace(manifest, text=text))
    assert "capabilities  completion, tools, reasoning  " in drawn(bundle)


def test_fixed_bundle_and_tensors(fixed_bundle: Path) -> None:
    """Bars for the shapes; the tensors of one graph by name."""
    text = drawn(fixed_bundle, graph="ar8_cl64_1_of_2")
    assert "56 past + 8 rows" in text and "█" in text
    assert "past_key_1_in" in text and "[2, 1, 16, 56]" in text


def test_segments_are_drawn_by_kind(segmented_bundle: Path) -> None:
    """Not one line for every graph."""
    text = drawn(segmented_bundle, graph="linear_2_of_3")
    for expected in ("int4", "attention", "embedding, norms, biases", "memory of one sequence"):
        assert expected in text
    assert "linear_*.onnx (3 files)" in text and "linear_1_of_3.onnx" not in text
    assert "tensors of linear_2_of_3" in text and "[1, rows, 64]" in text
    assert text.count("top-1") == 1


def test_int8_caches_are_drawn_with_their_size_and_loss(int8_cache_bundle: Path, segmented_bundle: Path) -> None:
    """2 layers, keys and values, 2 heads of 16: a number is a byte instead of four."""
    text = drawn(int8_cache_bundle)
    assert "128 bytes a token (int8)" in text and "512 bytes a token (float32)" in drawn(segmented_bundle)
    assert "scales of int8 caches" in text and "kv_scales.f32" in text
    assert "(int8); against floats: top-1" in text and "against floats" not in drawn(segmented_bundle)


def test_states_of_recurrent_layers_are_drawn_beside_the_cache(hybrid: Hybrid) -> None:
    """Two of eight layers have keys and values; the others take the same for a sequence of any length."""
    text = drawn(hybrid.bundle)
    assert "6 of the layers are recurrent: 4 heads of 16 x 24, convolution of 4; 48.4 kB a sequence" in text
    assert "1.0 kB a token (float32)" in text
    assert "262.1 kB" in text and "310.5 kB" in text  # of 256 columns, without and with the state
    assert "recurrent" in text and "conv_weights.f32" in text


def test_unknown_graph_and_folder(free_bundle: Path, tmp_path: Path) -> None:
    """Both are one sentence."""
    with pytest.raises(BundleError, match="no graph nope; it has free_1_of_2"):
        describe(free_bundle, graph="nope")
    with pytest.raises(BundleError, match="not a bundle"):
        describe(tmp_path)


def test_fused_graphs_say_what_a_pass_may_hold(bundles: Bundles) -> None:
    text = drawn(bundles("fused 3"), graph="model.0.pd.s16.d3")
    for expected in (
        "3 decode slots, prompt rows 5 of 8, 13 of 16; caches are written by the graph",
        "model.0.s1",
        "65 past + 16 rows",
        "memory of one sequence",
        "updated_past_key_decode2_1",
    ):
        assert expected in text
    assert "1 decode slot, prompt rows 7 of 8; caches are written by the host" in drawn(bundles("fused host"))


def test_how_the_files_advise_to_sample(free_bundle: Path, tmp_path: Path) -> None:
    manifest = load_manifest(free_bundle)
    text = msgspec.structs.replace(manifest.text, sampling=UsualSampling(temperature=0.7, top_k=20))
    advised = shutil.copytree(free_bundle, tmp_path / "advised")
    save_manifest(advised, msgspec.structs.replace(manifest, text=text))
    assert "temperature 0.7, top_k 20" in drawn(advised)
    assert "sampling" not in drawn(free_bundle)


def test_an_encoder(tmp_path: Path) -> None:
    """What it makes of a text, and nothing of caches and tokens that it has not."""
    write_encoder(tmp_path / "tiny", "NomicBert")
    write_pooling(tmp_path / "tiny", "mean_tokens", normalize=False, max_tokens=40)
    arguments = CompileArguments(tmp_path / "tiny", tmp_path / "bundle", quant=Quant.INT8, rows=(8, 64))
    compile_bundle(arguments, SilentProgress())
    text = drawn(tmp_path / "bundle", graph="ar8_cl8_1_of_1")
    for expected in (
        "nomic_bert",
        "rotary, theta 1000; token types: 2",
        "40 tokens at most; steps of 8, 64 rows",
        "64 numbers, of any length: the mean of its rows",
        "2 ... 3",
        "query 'search_query: '",
        "cosine 0.99",
        "embeddings",
        "token_type_ids",
    ):
        assert expected in text
    for foreign in ("cache", "stop ids", "memory of", "past", "top-1"):
        assert foreign not in text


def test_a_cross_encoder(tmp_path: Path) -> None:
    write_encoder(tmp_path / "tiny", "Bert", "ForSequenceClassification", num_labels=1)
    compile_bundle(CompileArguments(tmp_path / "tiny", tmp_path / "bundle", quant=Quant.FP32), SilentProgress())
    text = drawn(tmp_path / "bundle")
    assert "of pairs: 2 query 3 document 3" in text
    assert "a table, from 0 on" in text
    assert "score_head.bin" in text


def test_what_quality_won_and_cost(tiny_checkpoint: Path, short_text: Path, tmp_path: Path) -> None:
    """Methods, tokens and seconds; the error of each kind of matrix before and after."""
    arguments = CompileArguments(tiny_checkpoint, tmp_path / "good", quality=QualityLevel.GOOD, calibration=short_text)
    quality = compile_bundle(arguments, SilentProgress()).quality
    assert quality is not None
    text = drawn(tmp_path / "good")
    assert f"good: {quality.methods[0]}" in text
    assert f"{quality.tokens:,} tokens" in text
    for kind, error in quality.errors.items():
        assert f"{kind} {error.nearest:.1e} to {error.chosen:.1e}" in text
