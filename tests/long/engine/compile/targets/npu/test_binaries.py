"""Context binaries from small graphs, made by the real compiler; and its errors in words."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import ProgressSink, SilentProgress
from engine.compile.targets.context import ContextJob
from engine.compile.targets.measure import NOT_MEASURED, ON_CPU, choose_way
from engine.compile.targets.npu import reason, run_job
from engine.errors import CompileError
from engine.runtime.qnn.reader import describe_binary
from tools.random_checkpoint import SHAPES, write_checkpoint


def write_graph(path: Path, operator: str) -> None:
    """y = operator(x + x), half precision."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 4]) for name in ("x", "y")]
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node(operator, ["a"], ["y"], name="node_7")]
    graph = helper.make_graph(nodes, path.stem, value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)


def job(source: Path) -> ContextJob:
    return ContextJob((str(source),), (str(source.with_name("made_ctx.onnx")),), 60, 73)


def test_an_operator_the_npu_lacks_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    write_graph(tmp_path / "ar1_cl8_1_of_1.onnx", "Hardmax")
    with pytest.raises(
        CompileError, match=r"ar1_cl8_1_of_1 cannot be .*: the NPU has no operator Hardmax \(node node_7\)"
    ):
        run_job(job(tmp_path / "ar1_cl8_1_of_1.onnx"))


def test_a_graph_that_is_no_graph_is_an_error_not_a_crash(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(CompileError, match=r"bad cannot be compiled for the NPU: .*exited with status 4"):
        run_job(job(tmp_path / "bad.onnx"))


def test_reasons() -> None:
    coloured = "\x1b[1;31mFailed to write context cache file.\x1b[m"
    assert reason(coloured, 4) == "Failed to write context cache file. (it exited with status 4)"
    assert reason("", -11) == "no reason was given (it was killed by SIGSEGV)"
    assert '-m pip install "hexserve[qnn]"' in reason("this needs ... (No module named 'onnxruntime_qnn')", 4)
    assert reason("x Failed to finalize QNN graph. Error code: 1002", 4).startswith("Failed to finalize QNN graph")


def test_where_quality_is_measured() -> None:
    small, medium, large = 4_000_000, 600_000_000, 8_000_000_000
    assert choose_way(small, shared=False, device=False) == "HTP emulator"
    assert choose_way(small, shared=True, device=False) == ON_CPU  # loading shared binaries kills the emulator
    assert choose_way(medium, shared=False, device=False) == ON_CPU
    assert choose_way(large, shared=True, device=False) == NOT_MEASURED


class Notes(SilentProgress):
    """Keeps what the compiler says."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []

    def stage(self, title: str, total: int, unit: str) -> None:
        self.stages.append(title)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    pytest.importorskip("onnxruntime_qnn")
    write_checkpoint(tmp_path / "source", SHAPES["tiny"])

    def build_bundle(name: str, progress: ProgressSink | None = None, **changes: object) -> Path:
        fields = {"quant": Quant.FP16, "rows": (1, 8), "context": (64,), "target": Target.X_ELITE, **changes}
        arguments = CompileArguments(tmp_path / "source", tmp_path / name, **fields)  # type: ignore[arg-type]
        compile_bundle(arguments, progress or SilentProgress())
        return tmp_path / name

    return build_bundle


def test_a_layout_that_genie_cannot_run_is_compiled_and_says_so(build: Callable[..., Path]) -> None:
    """The head's one binary holds both widths, and only one of them has the narrow context."""
    progress = Notes()
    npu = load_manifest(build("odd", progress, rows=(1, 100), context=(64, 128))).npu
    assert npu is not None
    assert npu.not_genie.startswith("part_2_of_2.bin cannot be copied as part_2_of_2_for_cl64.bin")
    assert f"hexserve can run this bundle, Genie cannot: {npu.not_genie}" in progress.notes
    ordinary = build("ordinary", progress)
    assert load_manifest(ordinary).npu.not_genie == ""  # type: ignore[union-attr]
    assert {"genie_config.json", "metadata.json"} <= set(load_manifest(ordinary).files)
    assert progress.stages.count("Genie files") == 2


def test_shared_weights_are_one_binary_for_each_part(build: Callable[..., Path], tmp_path: Path) -> None:
    """Two graphs, and room for one copy of the weights. (Not loaded: that would kill the emulator.)"""
    shared, single = build("shared"), build("single", share_weights=False)
    manifest = load_manifest(shared)
    assert manifest.npu is not None and set(manifest.npu.shared) == {"part_1_of_2.bin", "part_2_of_2.bin"}
    info = describe_binary(shared / "part_1_of_2.bin", tmp_path)
    assert sorted(graph.name for graph in info.graphs) == sorted(manifest.npu.binaries["part_1_of_2.bin"])
    assert len(info.graphs) == 2
    alone = [(single / f"ar{rows}_cl64_1_of_2.bin").stat().st_size for rows in (1, 8)]
    assert (shared / "part_1_of_2.bin").stat().st_size < 0.8 * sum(alone)


def test_the_manifest_tells_everything(build: Callable[..., Path]) -> None:
    folder = build("whole", share_weights=False, target=Target.X2_ELITE, context=(), same_past=(48,))
    manifest = load_manifest(folder)
    assert (manifest.target, manifest.quant, manifest.kv_dtype) == ("x2-elite", "fp16", "float16")
    assert [graph.name for graph in manifest.graphs] == [
        "ar1_cl49_1_of_2",
        "ar8_cl56_1_of_2",
        "ar1_cl49_2_of_2",
        "ar8_cl56_2_of_2",
    ]
    npu = manifest.npu
    assert npu is not None and (npu.soc_model, npu.htp_arch, npu.parity_on) == (88, 81, "HTP emulator")
    assert npu.sdk.startswith("v2.") and "onnxruntime-qnn" in manifest.versions
    assert manifest.parity["top1"] > 0.95 and manifest.parity["kl"] < 1e-4
    on_disk = {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert on_disk == set(manifest.files)  # no intermediate file is left
    by_name = {tensor.name: tensor for tensor in manifest.graphs[1].inputs}
    assert (by_name["input_ids"].dtype, by_name["input_ids"].shape) == ("int32", (1, 8))
    assert (by_name["past_key_1_in"].dtype, by_name["past_key_1_in"].shape) == ("float16", (2, 1, 16, 48))
    assert by_name["attention_mask"].shape == (1, 1, 8, 56)
