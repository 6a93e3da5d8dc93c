"""Provider options, what is refused before a library sees it, and sessions that never run on the CPU instead."""

from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import (
    FileEntry,
    GraphKind,
    GraphSpec,
    Manifest,
    NpuSpec,
    TensorSpec,
    TextSpec,
    describe_file,
    load_manifest,
)
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.errors import BundleError
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, ContextNode, QnnEncoding, write_wrapper
from engine.runtime.qnn.provider import HtpTarget, check_machine, device_name, open_session, run_options
from engine.runtime.qnn.trial import check_binaries, check_bundle, try_load

X_ELITE = HtpTarget(60, 73)
HIDDEN = "hidden_states"


def bundle(binaries: dict[str, tuple[str, ...]], **changes: object) -> Manifest:
    """A manifest of one decoder in two binaries (keys as float16) without files."""
    ids = TensorSpec("input_ids", "int32", (1, 1))
    past = TensorSpec("past_key_0_in", "float16", (2, 1, 16, 63))
    fresh = TensorSpec("past_key_0_out", "float16", (2, 1, 16, 1))
    logits = TensorSpec("logits", "float16", (1, 1, 300))
    chains = {"ar1_cl64_1_of_1": tuple((file, name) for file, names in binaries.items() for name in names)}
    spec = GraphSpec("ar1_cl64_1_of_1", "w.onnx", GraphKind.DEFAULT, 1, 1, (ids, past), (fresh, logits), 1, 64, 0, 0)
    rope = RopeSpec("default", 1e4, 16, (1.0,) * 8)
    model = ModelSpec("qwen3", 1, 64, 4, 2, 16, 128, 300, rope)
    npu = NpuSpec(60, 73, binaries, chains)
    text = TextSpec("tokenizer.json", None, (0,))
    made = Manifest(1, "m", "x-elite", "fp16", "none", 0, model, (spec,), "float16", 64, text, {}, {}, npu=npu)
    return msgspec.structs.replace(made, **changes)


def tensor(name: str, dtype: str, *shape: int, scale: float | None = None, data_format: int = 0) -> BinaryTensor:
    return BinaryTensor(name, dtype, shape, data_format, None if scale is None else QnnEncoding((scale,), (-128,)))


def infos(
    key_in: BinaryTensor | None = None,
    key_out: BinaryTensor | None = None,
    logits: BinaryTensor | None = None,
    hidden: BinaryTensor | None = None,
    extra: tuple[BinaryTensor, ...] = (),
) -> dict[str, BinaryInfo]:
    """Binaries for `bundle({"a.bin": ("g1",), "b.bin": ("g2",)})`, right but for what is replaced."""
    first = BinaryGraph(
        "g1",
        (tensor("input_ids", "int32", 1, 1), key_in or tensor("past_key_0_in", "float16", 2, 1, 16, 63), *extra),
        (tensor(HIDDEN, "float16", 1, 1, 64), key_out or tensor("past_key_0_out", "float16", 2, 1, 16, 1)),
    )
    second = BinaryGraph(
        "g2", (hidden or tensor(HIDDEN, "float16", 1, 1, 64),), (logits or tensor("logits", "float16", 1, 1, 300),)
    )
    return {file: BinaryInfo("v2.51.0", (graph,)) for file, graph in (("a.bin", first), ("b.bin", second))}


TWO = {"a.bin": ("g1",), "b.bin": ("g2",)}


def wrap(folder: Path) -> None:
    """Write the wrapper of `bundle(TWO)`."""
    first = ContextNode("g1", "a.bin", ("input_ids", "past_key_0_in"), (HIDDEN, "past_key_0_out"))
    write_wrapper(folder / "w.onnx", [first, ContextNode("g2", "b.bin", (HIDDEN,), ("logits",))], [], [])


def listed(folder: Path) -> dict[str, FileEntry]:
    return {path.name: describe_file(path) for path in folder.iterdir()}


def test_options_are_data() -> None:
    assert run_options(X_ELITE, "x86_64", "") == {"soc_model": "60", "htp_arch": "73"}
    on_device = run_options(X_ELITE, "ARM64", "enable_htp_shared_memory_allocator=1")
    assert on_device["htp_performance_mode"] == "burst" and on_device["enable_htp_shared_memory_allocator"] == "1"
    assert "soc_model" not in on_device  # the driver knows its chip
    with pytest.raises(BundleError, match="enable_htp_shared_memory_allocator works on devices only"):
        run_options(X_ELITE, "AMD64", "enable_htp_shared_memory_allocator=1")


def test_the_device_has_a_name_for_people() -> None:
    assert [device_name(machine) for machine in ("ARM64", "aarch64", "x86_64", "AMD64")] == [
        "NPU",
        "NPU",
        "HTP emulator",
        "HTP emulator",
    ]


def test_shared_binaries_are_refused_in_the_emulator_with_the_way_out() -> None:
    shared = bundle({"part_1_of_2.bin": ("g1", "g2")})
    with pytest.raises(BundleError, match=r"part_1_of_2.bin holds 2 graphs.*--one-graph-per-binary"):
        check_machine(shared, "x86_64")
    check_machine(shared, "ARM64")
    with pytest.raises(BundleError, match="not which chip"):
        check_machine(bundle(TWO, npu=None), "ARM64")


def test_binaries_that_are_what_the_manifest_says() -> None:
    check_binaries(bundle(TWO), infos())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (infos(key_in=tensor("past_value_0_in", "float16", 2, 1, 16, 63)), "no input past_key_0_in"),
        (infos(key_in=tensor("past_key_0_in", "float16", 2, 1, 63, 16)), r"past_key_0_in is float16 \[2, 1, 63, 16\]"),
        (infos(key_in=tensor("past_key_0_in", "uint16", 2, 1, 16, 63)), "past_key_0_in is uint16"),
        (infos(key_in=tensor("past_key_0_in", "float16", 2, 1, 16, 63, data_format=8)), "private layout"),
        (infos(key_out=tensor("past_key_0_out", "uint8", 2, 1, 16, 1, scale=0.5)), "past_key_0_out is uint8"),
        (infos(logits=tensor("logits", "uint16", 1, 1, 300, scale=0.1)), "logits is uint16"),
        (infos(hidden=tensor(HIDDEN, "uint16", 1, 1, 64)), "hidden_states leaves one part as float16"),
        (infos(extra=(tensor("alpha", "float16", 1),)), "has the input alpha, which its manifest does not know"),
    ],
)
def test_binaries_that_are_something_else(found: dict[str, BinaryInfo], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        check_binaries(bundle(TWO), found)


def test_caches_must_be_encoded_alike_on_both_sides() -> None:
    spec = bundle(TWO).graphs[0]
    past = TensorSpec("past_key_0_in", "uint8", (2, 1, 16, 63), 0.5, 128)
    fresh = TensorSpec("past_key_0_out", "uint8", (2, 1, 16, 1), 0.25, 128)
    changed = msgspec.structs.replace(spec, inputs=(spec.inputs[0], past), outputs=(fresh, spec.outputs[1]))
    found = infos(
        tensor("past_key_0_in", "uint8", 2, 1, 16, 63, scale=0.5),
        tensor("past_key_0_out", "uint8", 2, 1, 16, 1, scale=0.25),
    )
    with pytest.raises(BundleError, match=r"past_key_0_in is uint8 .*scale 0.5.*past_key_0_out is uint8 .*scale 0.25"):
        check_binaries(bundle(TWO, graphs=(changed,)), found)
    wrong = msgspec.structs.replace(past, scale=0.125)
    with pytest.raises(BundleError, match=r"scale 0.5, zero point 128 in its binary.*scale 0.125"):
        check_binaries(bundle(TWO, graphs=(msgspec.structs.replace(changed, inputs=(spec.inputs[0], wrong)),)), found)


def test_a_chain_that_names_a_missing_graph() -> None:
    with pytest.raises(BundleError, match=r"runs g9, which b\.bin does not hold"):
        check_binaries(bundle({"a.bin": ("g1",), "b.bin": ("g9",)}), infos())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV while it loaded"),
        ("import sys; print('the graph is odd', file=sys.stderr); sys.exit(3)", "the graph is odd"),
        ("import sys; print('error 1002', file=sys.stderr); sys.exit(1)", "not enough memory"),
        ("import time; time.sleep(60)", "did not load within 1 s"),
    ],
)
def test_how_a_first_load_may_end(tmp_path: Path, program: str, message: str) -> None:
    import sys

    with pytest.raises(BundleError, match=message):
        try_load(tmp_path, (sys.executable, "-c", program), timeout_s=1 if "sleep" in program else 60)


def test_a_graph_the_npu_cannot_take_never_runs_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    onnx = pytest.importorskip("onnx")
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    node = onnx.helper.make_node("Hardmax", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10),
        tmp_path / "g.onnx",
    )
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        open_session(tmp_path / "g.onnx", run_options(X_ELITE, extra=""), {})


def test_the_check_is_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"x")
    wrap(tmp_path)
    manifest = bundle(TWO, files=listed(tmp_path))
    module = "engine.runtime.qnn.trial"
    loads: list[Path] = []
    monkeypatch.setattr(f"{module}.read_binaries", lambda *_: infos())
    monkeypatch.setattr(f"{module}.try_load", lambda folder, _: loads.append(folder))
    cache = tmp_path / "cache"
    check_bundle(tmp_path, manifest, cache)
    check_bundle(tmp_path, manifest, cache)
    assert len(loads) == 1
    (tmp_path / "a.bin").write_bytes(b"xy")
    with pytest.raises(BundleError, match=r"a\.bin is damaged: its sha256"):
        check_bundle(tmp_path, manifest, cache)
    assert len(loads) == 1
    changed = bundle(TWO, files=manifest.files | {"a.bin": describe_file(tmp_path / "a.bin")})
    check_bundle(tmp_path, changed, cache)
    check_bundle(tmp_path, changed, None)
    assert len(loads) == 3


@pytest.mark.parametrize("changes", [{"npu": NpuSpec(60, 73, {**TWO, "../c.bin": ("g3",)})}, {}])
def test_files_that_the_bundle_does_not_have(tmp_path: Path, changes: dict[str, object]) -> None:
    for name in ("a.bin", "b.bin", *(("w.onnx",) if changes else ())):
        (tmp_path / name).write_bytes(b"x")
    manifest = bundle(TWO, files=listed(tmp_path), **changes)
    wrong = "../c.bin" if changes else "w.onnx"
    with pytest.raises(BundleError, match=f"uses {wrong}, but does not list it"):
        check_bundle(tmp_path, manifest, tmp_path / "cache")


def test_a_newer_or_damaged_binary_is_an_error_with_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    for name in ("a.bin", "b.bin", "w.onnx"):
        (tmp_path / name).write_bytes(b"no binary at all" * 100)
    manifest = bundle(TWO, files=listed(tmp_path))
    with pytest.raises(BundleError, match=r"a\.bin"):
        check_bundle(tmp_path, manifest, tmp_path / "cache")


def test_a_manifest_of_another_target_still_loads(tmp_path: Path) -> None:
    """`npu` is optional: bundles for the CPU have none."""
    assert msgspec.json.decode(msgspec.json.encode(bundle(TWO, npu=None)), type=Manifest).npu is None
    with pytest.raises(BundleError):
        load_manifest(tmp_path)
