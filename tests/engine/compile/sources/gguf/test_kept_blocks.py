"""Four-bit blocks of a file in the bundle: the very codes and scales, where a second rounding would change them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnxruntime as ort
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant, Target, default_quant
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from tests.engine.compile.graphs.segments.stored_weights import meant, stored
from tests.engine.compile.sources.gguf.gguf_files import F16, F32, Floats, write_gguf

Build = Callable[..., tuple[Path, Manifest]]
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
Q5_0, Q4_1, Q4_K = GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K
MXFP4 = GGMLQuantizationType.MXFP4


def far_from_the_edge(rows: Floats, kind: GGMLQuantizationType) -> NDArray[np.generic]:
    """Blocks whose codes are 5 to 10: who rounds once more puts the largest on the edge, with another scale."""
    content = gguf.quantize(rows, kind)
    if kind is not Q4_0:
        return content
    blocks = content.reshape(len(content), -1, 18).copy()
    low, high = blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4
    blocks[:, :, 2:] = (5 + low % 6) | ((5 + high % 6) << 4)
    return blocks.reshape(content.shape)


@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_codes_and_scales_are_those_of_the_file(
    family: str, make_oracle: Callable[..., tuple[Any, Path]], build: Build, tmp_path: Path
) -> None:
    """Also of stacked matrices, of rows that were re-ordered, and of queries that carry the attention scale."""
    _, source = make_oracle(family, head_dim=16, intermediate_size=96, num_hidden_layers=1, tie_word_embeddings=True)
    path = write_gguf(source, tmp_path / "m.gguf", Q4_0, quantize=far_from_the_edge)
    folder, manifest = build(path, layout=Layout.SEGMENTS)
    header = gguf.GGUFReader(path)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in header.tensors}
    graph = stored(folder / "linear_1_of_2.onnx") | stored(folder / "linear_2_of_2.onnx")
    down = meant(graph, "layer_0_down", 96)
    assert np.array_equal(down, file["blk.0.ffn_down.weight"])
    assert not np.array_equal(down, rounded_again(file["blk.0.ffn_down.weight"]))
    both = np.concatenate([file["blk.0.ffn_gate.weight"], file["blk.0.ffn_up.weight"]])
    assert np.array_equal(meant(graph, "layer_0_gate_up", 64), both)
    assert np.array_equal(meant(graph, "head", 64), file["token_embd.weight"])
    query, key = file["blk.0.attn_q.weight"], file["blk.0.attn_k.weight"]
    if family == "Llama":
        order = np.arange(16).reshape(8, 2).T.reshape(-1)
        query, key = (rows.reshape(-1, 16, 64)[:, order].reshape(-1, 64) for rows in (query, key))
        query = query * np.float32(0.25)  # heads of 16
    qkv = np.concatenate([query, key, file["blk.0.attn_v.weight"]])
    assert np.array_equal(meant(graph, "layer_0_qkv", 64), qkv)
    assert manifest.parity["kl"] < 0.02, "what is left is the rounding of activations"


def rounded_again(weight: Floats) -> Floats:
    blocks = int4_blocks(weight, 32, False)
    return meant({"w_weight": blocks.stored(), "w_scales": blocks.scales}, "w", weight.shape[1])


@pytest.mark.parametrize("options", [{"block": 128}, {"asymmetric": True}, {"quant": Quant.FP32}])
def test_other_forms_are_made_of_floats(
    options: dict[str, Any], tiny_checkpoint: Path, build: Build, tmp_path: Path
) -> None:
    """The same bytes as of a file that has these floats."""
    path = write_gguf(tiny_checkpoint, tmp_path / "four.gguf", Q4_0, quantize=far_from_the_edge)
    floats = write_gguf(tiny_checkpoint, tmp_path / "floats.gguf", F32, quantize=lambda rows, _: as_if_rounded(rows))
    _, kept = build(path, **options)
    _, made = build(floats, **options)
    weights = {name: entry for name, entry in made.files.items() if name.endswith(".data")}
    assert weights.items() <= kept.files.items()


def as_if_rounded(rows: Floats) -> Floats:
    return rows if rows.ndim == 1 else np.asarray(gguf.dequantize(far_from_the_edge(rows, Q4_0), Q4_0))


def test_a_stack_of_blocks_and_others_keeps_the_blocks(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """Values are often stored finer than queries and keys."""
    path = write_gguf(
        tiny_checkpoint,
        tmp_path / "mixed.gguf",
        lambda name: Q8_0 if "attn_v" in name else Q4_0,
        quantize=far_from_the_edge,
    )
    folder, _ = build(path, layout=Layout.SEGMENTS)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    qkv = meant(stored(folder / "linear_1_of_3.onnx"), "layer_0_qkv", 64)
    assert np.array_equal(qkv[:64], file["blk.0.attn_q.weight"])
    assert np.array_equal(qkv[96:], rounded_again(file["blk.0.attn_v.weight"]))


def meant_bytes(tensors: dict[str, NDArray[Any]], name: str) -> Floats:
    """[outputs, inputs]: (code - 128) * scale, written once more from the operator's definition."""
    codes = tensors[f"{name}_weight"].astype(np.float32) - 128
    return np.asarray((codes * tensors[f"{name}_scales"][..., None]).reshape(len(codes), -1))


def test_keep_holds_every_block_as_it_is(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """Matrices of 4 bits stay so, those of 8 bits too. A stack of both becomes 8 bits; it loses nothing where rows are
    too short for wide blocks, as here."""
    kinds = {"attn_v": Q8_0, "ffn_down": Q8_0, "token_embd": F16}
    path = write_gguf(
        tiny_checkpoint,
        tmp_path / "mixed.gguf",
        lambda name: next((kind for part, kind in kinds.items() if part in name), Q4_0),
        quantize=far_from_the_edge,
    )
    folder, manifest = build(path, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    graph = stored(folder / "linear_1_of_3.onnx") | stored(folder / "linear_2_of_3.onnx")
    qkv = np.concatenate([file[f"blk.0.attn_{name}.weight"] for name in "qkv"])
    assert np.array_equal(meant_bytes(graph, "layer_0_qkv"), qkv)
    assert np.array_equal(meant(graph, "layer_0_output", 64), file["blk.0.attn_output.weight"])
    assert np.array_equal(meant_bytes(graph, "layer_0_down"), file["blk.0.ffn_down.weight"])
    head = meant_bytes(stored(folder / "linear_3_of_3.onnx"), "head")
    assert 0 < np.abs(head - file["token_embd.weight"]).max() < 0.005 * np.abs(head).max()
    assert manifest.quant == "keep"
    assert manifest.parity["kl"] < 0.02


def test_a_file_of_eight_bits_loses_next_to_nothing(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    path = write_gguf(tiny_checkpoint, tmp_path / "eight.gguf", Q8_0)
    _, manifest = build(path, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert manifest.parity["kl"] < 2e-3


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("kind", [Q4_0, Q5_0, Q8_0, Q4_K], ids=["Q4_0", "Q5_0", "Q8_0", "Q4_K"])
def test_rows_are_looked_up_in_the_tables_own_blocks(
    kind: GGMLQuantizationType,
    is_tied: bool,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Build,
    tmp_path: Path,
) -> None:
    """Each is the file's to the bit, and a tied head has the same bytes. Blocks with offsets become half precision.
    Codes of 5 bits are kept there alone: in layers they are rounded to the blocks of 8 bits that are fastest."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "tie_word_embeddings": is_tied}
    _, source = make_oracle("Llama", **sizes)
    path = write_gguf(source, tmp_path / "m.gguf", kind, quantize=any_kind)
    folder, manifest = build(path, quant=Quant.KEEP, layout=Layout.SEGMENTS, amx=False)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    table, ids = file["token_embd.weight"], np.arange(manifest.model.vocab, dtype=np.int32)[None]
    session = ort.InferenceSession(folder / "linear_1_of_2.onnx")
    given = {each.name: np.zeros((1, 1, ids.size, each.shape[-1]), np.float32) for each in session.get_inputs()[1:]}
    (rows,) = session.run(["hidden_out"], {"input_ids": ids, **given})
    has_blocks = kind is not Q4_K
    assert np.array_equal(rows[0], table if has_blocks else table.astype(np.float16).astype(np.float32))
    blocks = stored(folder / "linear_2_of_2.onnx")["layer_0_down_scales"].shape[1]
    assert blocks * (128 if kind is Q5_0 else 32) == 256
    beside = 16_384  # norms and the like
    bits = {Q4_0: 4 + 1, Q5_0: 8 + 1, Q8_0: 8 + 1, Q4_K: 16}[kind] * (not (is_tied and has_blocks))
    assert manifest.files["shared.data"].bytes < table.size * bits // 8 + beside


@pytest.mark.parametrize(
    ("part", "kind", "others", "width"),
    [
        ("ffn_down", Q4_0, Q5_0, 128),
        ("ffn_down", Q4_0, Q4_0, 32),
        ("ffn_down", MXFP4, MXFP4, 32),
        ("output.", Q8_0, Q5_0, 128),
        ("output.", Q8_0, Q4_0, 32),
        ("output.", Q8_0, Q8_0, 32),
        ("output.", Q8_0, MXFP4, 32),
    ],
)
def test_what_few_have_is_rounded_like_the_others(
    part: str,
    kind: GGMLQuantizationType,
    others: GGMLQuantizationType,
    width: int,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Build,
    tmp_path: Path,
) -> None:
    """`down` of 4 bits, or a head of 8, among layers that are rounded: a scale then for 128 inputs. Others are kept."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "tie_word_embeddings": False}
    _, source = make_oracle("Llama", **sizes)
    path = write_gguf(source, tmp_path / "m.gguf", lambda name: kind if part in name and "attn" not in name else others)
    folder, manifest = build(path, quant=Quant.KEEP, layout=Layout.SEGMENTS, amx=False)
    name = "head_scales" if part == "output." else "layer_0_down_scales"
    assert stored(folder / "linear_2_of_2.onnx")[name].shape[1] * width == 256
    assert manifest.parity["kl"] < 0.02


@pytest.mark.parametrize(("name", "quant"), [("a.gguf", Quant.KEEP), ("a", Quant.INT8)])
def test_what_is_kept_unless_said(name: str, quant: Quant) -> None:
    assert default_quant(Target.CPU, Path(name)) is quant
    assert default_quant(Target.X_ELITE, Path(name)) is Quant.W4


def q4_k(rows: Floats) -> NDArray[np.uint8]:
    """Rows as blocks of Q4_K, which the package only reads: the plainest choice of scales and minima."""
    blocks = rows.reshape(-1, 8, 32)
    low = np.minimum(blocks.min(axis=2), 0)
    scales, minima = (blocks.max(axis=2) - low) / 15, -low
    d, dmin = (np.float16(each.max(axis=1, keepdims=True) / 63) for each in (scales, minima))
    small, least = (np.rint(each / part.astype(np.float32)) for each, part in ((scales, d), (minima, dmin)))
    steps = np.maximum(small * d.astype(np.float32), 1e-12)[:, :, None]
    codes = np.clip(np.rint((blocks + (least * dmin.astype(np.float32))[:, :, None]) / steps), 0, 15).astype(np.uint8)
    first, second = small.astype(np.uint8), least.astype(np.uint8)
    top = [values[:, :4] | ((values[:, 4:] >> 4) << 6) for values in (first, second)]
    packed = [d.view(np.uint8), dmin.view(np.uint8), *top, (first[:, 4:] & 15) | ((second[:, 4:] & 15) << 4)]
    nibbles = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return np.concatenate([*packed, nibbles.reshape(len(blocks), -1)], axis=1).reshape(len(rows), -1)


def any_kind(rows: Floats, kind: GGMLQuantizationType) -> NDArray[np.generic]:
    return q4_k(rows) if kind is Q4_K else gguf.quantize(rows, kind)


@pytest.mark.parametrize("kind", [Q4_1, Q4_K], ids=["Q4_1", "Q4_K"])
@pytest.mark.parametrize("layout", [Layout.SEGMENTS, Layout.POOL])
def test_blocks_with_offsets_stay_four_bits(
    kind: GGMLQuantizationType,
    layout: Layout,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Build,
    tmp_path: Path,
) -> None:
    """Nothing but activations is rounded: int4, which rounds such weights again, loses many times more."""
    _, source = make_oracle("Llama", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    path = write_gguf(source, tmp_path / "m.gguf", kind, quantize=any_kind)
    folder, kept = build(path, quant=Quant.KEEP, layout=layout)
    _, rounded = build(path, quant=Quant.INT4, layout=layout)
    assert kept.parity["kl"] < rounded.parity["kl"] / 10
    if layout is Layout.POOL:
        return
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    graph = stored(folder / "linear_2_of_2.onnx")
    weight = meant(graph, "layer_0_down", 256).reshape(256, 8, 32) + graph["layer_0_down_offsets"][:, :, None]
    down = file["blk.0.ffn_down.weight"]
    assert np.allclose(weight.reshape(256, 256), down, rtol=0, atol=1e-6 * np.abs(down).max())
