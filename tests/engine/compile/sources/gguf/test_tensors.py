"""Tensors of a GGUF file: every type as the package reads it, rows back in their order, nothing held."""

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from engine.compile.sources.gguf.architectures import ARCHITECTURES
from engine.compile.sources.gguf.geometry import GgufGeometry
from engine.compile.sources.gguf.header import read_header
from engine.compile.sources.gguf.tensors import gguf_tensors
from engine.errors import CompileError, UnsupportedModel

NAMES = (
    "F32 F16 BF16 Q8_0 Q5_1 Q5_0 Q4_1 Q4_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4 "
    "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS"
)
KINDS = [GGMLQuantizationType[name] for name in NAMES.split()]
GEOMETRY = GgufGeometry(layers=1, heads=4, head_dim=8)
QUERY = "model.layers.0.self_attn.q_proj.weight"


def stored(kind: GGMLQuantizationType, rows: int, width: int) -> NDArray[np.uint8]:
    """Any bytes are such blocks; with their highest bits cleared no half-precision scale in them is infinite."""
    block, size = GGML_QUANT_SIZES[kind]
    noise = np.random.default_rng(kind.value).integers(0, 256, (rows, width // block * size), np.uint8)
    return noise & np.uint8(0x3F)


def write(path: Path, architecture: str, tensors: dict[str, tuple[NDArray[np.uint8], GGMLQuantizationType]]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for name, (content, kind) in tensors.items():
        writer.add_tensor(name, content, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_every_type_is_what_the_package_makes_of_it(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """Rows of a matrix, and rows whose order the converter changed."""
    content = stored(kind, 32, 512)
    expected = gguf.dequantize(content.view(np.uint8), kind).reshape(32, 512)
    order = np.arange(32).reshape(4, 4, 2).swapaxes(1, 2).reshape(-1)
    write(tmp_path / "m.gguf", "qwen3", {"blk.0.attn_q.weight": (content, kind)})
    write(tmp_path / "turned.gguf", "llama", {"blk.0.attn_q.weight": (content, kind)})
    for name, architecture, wanted in (("m", "qwen3", expected), ("turned", "llama", expected[order])):
        header = read_header(tmp_path / f"{name}.gguf")
        with gguf_tensors(header, ARCHITECTURES[architecture], GEOMETRY) as tensors:
            assert np.array_equal(tensors.rows(QUERY, 5, 23), wanted[5:23])
            assert np.array_equal(tensors.tensor(QUERY, (32, 512)), wanted)
            assert tensors.unused() == []


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q8_0"])
def test_blocks_are_what_the_package_makes_of_them(name: str, tmp_path: Path) -> None:
    """Code minus middle times scale, perhaps plus an offset; the order of rows and of codes is the operator's."""
    kind = GGMLQuantizationType[name]
    write(tmp_path / "m.gguf", "llama", {"blk.0.attn_q.weight": (stored(kind, 32, 512), kind)})
    with gguf_tensors(read_header(tmp_path / "m.gguf"), ARCHITECTURES["llama"], GEOMETRY) as tensors:
        blocks, expected = tensors.blocks(QUERY, 3, 17), tensors.rows(QUERY, 3, 17)
        form = tensors.form(QUERY)
        assert form is not None and blocks is not None and form.bits == blocks.bits
    values = (blocks.codes.astype(np.float32) - (8 if name.startswith("Q4") else 128)) * blocks.scales[:, :, None]
    values += 0 if blocks.offsets is None else blocks.offsets[:, :, None]
    assert np.allclose(values.reshape(14, 512), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert (name in ("Q4_0", "Q5_0", "Q8_0")) <= np.array_equal(values.reshape(14, 512), expected)


def test_rows_are_read_without_the_rest(tmp_path: Path) -> None:
    """A table of 32 MiB, of which some rows are wanted."""
    content = stored(GGMLQuantizationType.F16, 1 << 14, 1024)
    write(tmp_path / "m.gguf", "qwen3", {"token_embd.weight": (content, GGMLQuantizationType.F16)})
    with gguf_tensors(read_header(tmp_path / "m.gguf"), ARCHITECTURES["qwen3"], GEOMETRY) as tensors:
        tracemalloc.start()
        tensors.rows("model.embed_tokens.weight", 1000, 1010)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_type_without_a_reader_is_named(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "qwen3", {"blk.0.attn_q.weight": (stored(KINDS[0], 4, 64), GGMLQuantizationType.I32)})
    with (
        gguf_tensors(read_header(tmp_path / "m.gguf"), ARCHITECTURES["qwen3"], GEOMETRY) as tensors,
        pytest.raises(UnsupportedModel, match=r"m\.gguf: tensor type I32 is not supported"),
    ):
        tensors.rows(QUERY, 0, 1)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    content = np.full((4, 64), np.nan, np.float32).view(np.uint8)
    write(tmp_path / "m.gguf", "qwen3", {"blk.0.attn_q.weight": (content, GGMLQuantizationType.F32)})
    with (
        gguf_tensors(read_header(tmp_path / "m.gguf"), ARCHITECTURES["qwen3"], GEOMETRY) as tensors,
        pytest.raises(CompileError, match="not finite"),
    ):
        tensors.rows(QUERY, 0, 1)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, "qwen3", {"blk.0.attn_q.weight": (stored(KINDS[0], 400, 64), GGMLQuantizationType.F32)})
    with gguf_tensors(read_header(path), ARCHITECTURES["qwen3"], GEOMETRY) as tensors:
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(CompileError, match="became shorter"):
            tensors.rows(QUERY, 300, 400)
