"""A manifest is refused by the name of its field before anything is sized by it."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.bundle.manifest import DiffusionSpec, load_manifest, save_manifest
from engine.bundle.specs import QualitySpec
from engine.errors import BundleError
from tests.engine.tiny_bundle import write_bundle


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model.layers", 0, r"Expected `int` >= 1 - at `\$\.model\.layers`"),
        ("model.layers", 10**30, r"at `\$\.model\.layers`"),
        ("model.head_dim", 2**31, r"Expected `int` <= 4096 - at `\$\.model\.head_dim`"),
        ("model.vocab", 0, r">= 1 - at `\$\.model\.vocab`"),
        ("max_context", 0, r">= 1 - at `\$\.max_context`"),
        ("model.rope.rotary_dim", -64, r">= 2 - at `\$\.model\.rope\.rotary_dim`"),
        ("model.rope.rotary_dim", 16, r"rotary_dim must be even and at most head_dim \(8\), it is 16"),
        ("model.rope.inverse_frequencies", [1.0], r"must hold 4 numbers, half of rotary_dim, it holds 1"),
        ("model.rope.factor", 0, r"> 0.* at `\$\.model\.rope\.factor`"),
        ("kv_dtype", "float128", "kv_dtype must be one of float32"),
        ("sample", {"ids": [1, 2, 10**6]}, r"sample\.ids holds 1000000, which is not among \d+ tokens"),
        (
            "sample",
            {"ids": [1, 2, 3], "losses": [0.5]},
            r"sample\.losses must hold 2 numbers, one for each",
        ),
        ("text.stop_ids", [-1], r">= 0 - at `\$\.text\.stop_ids"),
        ("text.tokenizer", "../tokenizer.json", "outside the bundle: the name '../tokenizer.json' does not stay"),
        ("text.chat_template", "/etc/passwd", "outside the bundle: the name '/etc/passwd' does not stay"),
        ("graphs.0.file", "../model.onnx", "outside the bundle"),
        ("parity", {"kl": None}, r"Expected `float`, got `null`"),
        ("diffusion", {"block_length": 0, "mask_token": 1}, r">= 1 - at `\$\.diffusion\.block_length`"),
        ("diffusion", {"block_length": 4}, "missing required field `mask_token`"),
        ("diffusion", {"block_length": 4, "mask_token": 9999}, r"diffusion\.mask_token \(9999\) is not among 262"),
    ],
)
def test_values_that_are_impossible(field: str, value: object, message: str, tmp_path: Path) -> None:
    write_bundle(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text())
    holder: Any = document
    *path, last = field.split(".")
    for key in path:
        holder = holder[int(key) if key.isdigit() else key]
    holder[last] = value
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match=message):
        load_manifest(tmp_path)


def test_caches_larger_than_any_models(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text())
    document["model"] |= {"layers": 1024, "kv_heads": 1024, "head_dim": 1024}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match="make 8589934592 bytes of cache a token, 16777216 is the most"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("kv_heads", "dtype", "megabytes"), [(8, "float16", 234.9), (4, "float16", 117.4), (8, "uint8", 117.4)]
)
def test_memory_of_a_cache(kv_heads: int, dtype: str, megabytes: float, tmp_path: Path) -> None:
    """28 layers, 2,048 columns, heads of 128 numbers: keys and values, in millions of bytes."""
    manifest = write_bundle(tmp_path)
    model = structs.replace(manifest.model, layers=28, kv_heads=kv_heads, head_dim=128)
    sized = structs.replace(manifest, model=model, kv_dtype=dtype)
    assert round(2048 * sized.kv_bytes_per_token / 1e6, 1) == megabytes


def test_models_of_blocks_say_so_and_the_others_nothing(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    assert "diffusion" not in (tmp_path / "manifest.json").read_text()
    save_manifest(tmp_path, structs.replace(manifest, diffusion=DiffusionSpec(16, 7)))
    assert load_manifest(tmp_path).diffusion == DiffusionSpec(16, 7)


def test_fields_of_another_version_are_passed_over(tmp_path: Path) -> None:
    """Bundles of `--quality best` once told what was learned."""
    write_bundle(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text())
    quality = {"level": "best", "methods": ["GPTQ"], "tokens": 4096, "seconds": 1.5}
    document["quality"] = quality | {"learned": {"KL": {"chosen": 0.2, "learned": 0.1}}}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert load_manifest(tmp_path).quality == QualitySpec("best", ("GPTQ",), 4096, 1.5)


def test_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"x":' + "[" * 100_000)
    with pytest.raises(BundleError, match="cannot be read"):
        load_manifest(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleError, match="it is a named pipe, not a regular file"):
        load_manifest(tmp_path)
    (tmp_path / "manifest.json").unlink()
    write_bundle(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.jinja").symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match=r"'chat_template\.jinja' is a link to a place outside its folder"):
        load_manifest(tmp_path)
