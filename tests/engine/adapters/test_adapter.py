"""Adapters against the matrices of a bundle: the tensor or the shape that does not fit is named."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.adapters.adapter import read_adapter, read_adapters
from engine.bundle.manifest import Manifest
from engine.bundle.specs import LoraModule
from engine.errors import BundleError
from tests.engine.adapters.peft_folders import write_adapter
from tests.engine.worker.recurrent_runtime import SMALLEST
from tests.engine.worker.segmented_runtime import smallest_manifest

MODULES = (
    LoraModule("model.layers.{layer}.self_attn.q_proj", "qkv", 8, 6, scaled_outputs=4, scale=0.5),
    LoraModule("model.layers.{layer}.mlp.down_proj", "down", 12, 8),
)
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def manifest() -> Manifest:
    plain = smallest_manifest()
    return msgspec.structs.replace(plain, lora=MODULES, model=msgspec.structs.replace(plain.model, layers=3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", MODULES, (0, 2), rank=2, alpha=6.0)


def test_factors_carry_every_scale(folder: Path) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    adapter = read_adapter("a", folder, manifest())
    assert set(adapter.factors) == {(name, layer) for name in ("q_proj", "down_proj") for layer in (0, 2)}
    factors = adapter.factors["q_proj", 0]
    assert (factors.a == tensors[f"{Q}.lora_A.weight"]).all()
    scale = 3.0 * np.array([0.5, 0.5, 0.5, 0.5, 1, 1])
    np.testing.assert_allclose(factors.b, (tensors[f"{Q}.lora_B.weight"] * scale[:, None]).T, rtol=1e-6)
    assert factors.b.flags.c_contiguous and adapter.rank("q_proj") == 2 and adapter.rank("k_proj") == 0


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("base_model.model.lm_head.lora_A.weight", (2, 8), "'base_model.model.lm_head.lora_A.weight' changes nothing"),
        ("base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight", (2, 8), "layers.3.*q_proj, down_proj, in 3"),
        ("base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", (2, 8), "k_proj.* changes nothing"),
        (f"{Q}.lora_magnitude_vector", (6,), "lora_magnitude_vector' changes nothing"),
        (f"{Q}.lora_B.bias", (6,), "lora_B.bias' changes nothing"),
        (f"{Q}.lora_A.weight", (2, 9), r"q_proj.lora_A.weight' has shape \[2, 9\], not \[2, 8\]"),
        (f"{Q}.lora_A.weight", (4, 8), r"q_proj.lora_A.weight' has shape \[4, 8\], not \[2, 8\]"),
        (f"{Q}.lora_B.weight", (2, 6), r"q_proj.lora_B.weight' has shape \[2, 6\], not \[6, 2\]"),
        ("model.layers.0.self_attn.q_proj.weight", (6, 8), "changes nothing"),
    ],
)
def test_tensors_that_do_not_fit(folder: Path, name: str, shape: tuple[int, ...], told: str) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {name: np.zeros(shape, np.float32)}, path)
    with pytest.raises(BundleError, match=told):
        read_adapter("a", folder, manifest())


def test_a_factor_without_the_other(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[f"{Q}.lora_B.weight"]
    save_file(tensors, path)
    with pytest.raises(BundleError, match=f"has no tensor {Q}.lora_B.weight"):
        read_adapter("a", folder, manifest())


def test_a_file_without_tensors(folder: Path) -> None:
    save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(BundleError, match="holds no adapter"):
        read_adapter("a", folder, manifest())


def test_a_scale_beyond_float(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {f"{Q}.lora_B.weight": np.full((6, 2), 3e38, np.float32)}, path)
    with pytest.raises(BundleError, match="makes its numbers too large"):
        read_adapter("a", folder, manifest())


def test_bundles_and_names_that_cannot_be(folder: Path) -> None:
    assert read_adapters({}, smallest_manifest()) == ()
    with pytest.raises(BundleError, match="none takes no adapters: `hexserve compile --lora`"):
        read_adapters({"a": folder}, smallest_manifest())
    plain = smallest_manifest()
    recurrent = msgspec.structs.replace(plain, model=msgspec.structs.replace(plain.model, recurrent=SMALLEST))
    with pytest.raises(BundleError, match="none takes no adapters: those of recurrent layers are not implemented"):
        read_adapters({"a": folder}, recurrent)
    with pytest.raises(BundleError, match="the adapter none has the name of the model"):
        read_adapters({"none": folder}, manifest())
    assert [adapter.name for adapter in read_adapters({"b": folder, "a": folder}, manifest())] == ["b", "a"]
