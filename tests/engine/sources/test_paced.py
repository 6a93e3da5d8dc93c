"""What a paced server is given to serve: a model of the published sizes, or a bundle of that very model."""

from pathlib import Path

import msgspec
import pytest
import tokenizers

from engine.bundle.manifest import load_manifest, save_manifest
from engine.bundle.variant import PassShape, shape_table
from engine.demo.location import DEMO
from engine.errors import BundleError
from engine.simulate.geometry import GEOMETRY
from engine.simulate.published import PUBLISHED
from engine.sources.paced import paced_folder, published_as, widened_tokenizer
from engine.text.tokenizer import Tokenizer
from tests.bundles import Bundles
from tests.engine.tiny_bundle import byte_level_tokenizer, write_bundle

NAME = "x2-elite/Llama-3.2-1B"


def test_the_demo_lends_its_text_to_a_model_of_the_published_sizes(tmp_path: Path) -> None:
    lender = write_bundle(tmp_path / "demo")
    folder = paced_folder(NAME, DEMO, tmp_path / "demo", tmp_path / "cache")
    manifest = load_manifest(folder)
    assert shape_table(manifest, 0).fixed == (PassShape(1, 3968), PassShape(32, 3968), PassShape(128, 3968))
    assert (manifest.kv_bytes_per_token, manifest.model.vocab) == (16_384, 128_256)
    assert (manifest.target, manifest.text) == ("paced", lender.text)
    assert paced_folder(NAME.upper(), DEMO, tmp_path / "demo", tmp_path / "cache") == folder
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_every_token_of_noise_has_a_text_of_its_own() -> None:
    own = byte_level_tokenizer()
    widened = widened_tokenizer(own.to_str().encode(), 3000)
    made = tokenizers.Tokenizer.from_str(widened.decode())
    assert sorted(made.get_vocab(with_added_tokens=True).values()) == list(range(3000))
    text = "hello there, <|im_start|> world"
    assert made.encode(text).ids == own.encode(text).ids
    assert made.token_to_id("<|im_end|>") == own.token_to_id("<|im_end|>")
    reader = Tokenizer(widened.decode())
    texts = [reader.token_bytes(token) for token in range(own.get_vocab_size(), 3000)]
    assert len(set(texts)) == len(texts) and all(each.startswith(b" ") and len(each) > 4 for each in texts)


def test_every_published_model_has_its_geometry() -> None:
    assert {row.model for row in PUBLISHED} == set(GEOMETRY)
    assert {row.title: row.kv_bytes for row in PUBLISHED} == {
        row.title: GEOMETRY[row.model].kv_bytes for row in PUBLISHED
    }


def test_a_wrong_name_lists_what_is_known() -> None:
    with pytest.raises(BundleError, match="'x-elite/nothing' has no published pass times; known are x-elite/llama"):
        published_as("x-elite/nothing")


def test_bundles_that_no_npu_runs_and_bundles_of_other_models_are_refused(bundles: Bundles, tmp_path: Path) -> None:
    free, fixed = bundles("free"), bundles("fixed")
    with pytest.raises(BundleError, match="mine has graphs of free shapes, which no NPU runs: leave it out"):
        paced_folder(NAME, "mine", free, tmp_path)
    with pytest.raises(BundleError, match=r"mine is not Llama-3.2-1B: its caches take 512 bytes a token.* 16384"):
        paced_folder(NAME, "mine", fixed, tmp_path)


def test_a_bundle_of_the_model_is_served_with_its_own_shapes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "demo")
    made = paced_folder(NAME, DEMO, tmp_path / "demo", tmp_path / "cache")
    manifest = load_manifest(made)
    save_manifest(made, msgspec.structs.replace(manifest, name="my own"))
    assert paced_folder(NAME, str(made), made, tmp_path / "cache") == made
