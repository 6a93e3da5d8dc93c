"""Integer graphs as X Elite binaries in the HTP emulator."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.parity import ChainedSequence
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from engine.graphs.batch import pack
from engine.plan import StepPlan
from tests.engine.compile.qdq.conftest import Bench, open_bench, segment

pytest.importorskip("onnxruntime_qnn")

from engine.graphs.onnx_qnn import EMULATOR, qnn_provider
from engine.graphs.onnx_qnn_trial import check_bundle

PROMPT = tuple((index * 31 + 7) % 3000 for index in range(20))
OTHER = (9, 9, 140, 3, 250, 61, 12)
SHAPE = PassShape(32, 224)


@pytest.fixture(scope="module", params=[Quant.W8A16, Quant.W4A16])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    output = tmp_path_factory.mktemp("emulator") / request.param
    arguments = CompileArguments(
        demo_folder(),
        output,
        target=Target.X_ELITE,
        quant=request.param,
        rows=(32,),
        context=(256,),
        share_weights=False,
        parity_tokens=200,
        name="demo",
    )
    return output, compile_bundle(arguments, SilentProgress())


@pytest.fixture(scope="module")
def bench(bundle: tuple[Path, Manifest]) -> Iterator[Bench]:
    folder, manifest = bundle
    opened = open_bench(folder, manifest, SHAPE, qnn_provider(manifest))
    assert opened.runtime.device == EMULATOR
    yield opened
    opened.runtime.close()


def test_binaries_hold_the_manifests_tensors_and_scales(bundle: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bundle
    check_bundle(folder, manifest, tmp_path)
    assert load_manifest(folder).kv_dtype == "uint8"


def test_the_emulator_says_what_floats_say(bundle: tuple[Path, Manifest]) -> None:
    manifest = bundle[1]
    assert manifest.npu is not None and manifest.npu.parity_on == EMULATOR
    print(f"{manifest.quant} in the emulator: {manifest.parity}")
    assert manifest.parity["top1"] >= (0.95 if manifest.quant == Quant.W8A16 else 0.80)


def test_packed_equals_solo_bit_for_bit_wherever_rows_and_columns_lie(bench: Bench) -> None:
    """Neighbours change no bit. Another order of rows and columns is another order of sums before they are rounded."""
    first = bench.run(segment("a", PROMPT, 0, (0, 1)))
    then = bench.run(segment("a", (33,), 20, (0, 1)))
    beside = bench.run(segment("b", OTHER, 0, (12,)), segment("a", PROMPT, 0, (0, 1)))
    after = bench.run(segment("b", (1,), 7, (12,)), segment("a", (33,), 20, (0, 1)))
    np.testing.assert_array_equal(beside[1], first[0])
    np.testing.assert_array_equal(after[1], then[0])
    # The same rows behind and before another sequence, over other columns in another order.
    packed = bench.run(segment("a", PROMPT, 0, (9, 3)), segment("b", OTHER, 0, (12,)))
    moved = bench.run(segment("c", (5, 6), 0, (13,)), segment("a", (33,), 20, (9, 3)), segment("b", (1,), 7, (12,)))
    for got, want in ((packed[0], first[0]), (moved[1], then[0])):
        assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
        assert got.argmax() == want.argmax()


def test_extreme_codes_in_stale_columns_change_no_bit(bench: Bench) -> None:
    bench.run(segment("a", PROMPT, 0, (0, 1)))
    batch = pack(StepPlan(SHAPE, 0, (segment("a", (33,), 20, (0, 1)),)), 16)
    clean = bench.runtime.run(batch)
    keys, values = bench.pool()
    for key_code, value_code in ((255, 0), (0, 255)):
        keys[..., 32:] = key_code
        values[..., 32:, :] = value_code
        np.testing.assert_array_equal(bench.runtime.run(batch), clean)


def test_the_cpu_computes_the_same_graphs_within_few_codes(bundle: tuple[Path, Manifest], tmp_path: Path) -> None:
    folder, manifest = bundle
    cpu = CompileArguments(
        demo_folder(), tmp_path / "cpu", quant=Quant(manifest.quant), rows=(32,), context=(256,), parity_tokens=2
    )
    twin = compile_bundle(cpu, SilentProgress())
    tokens = PROMPT + OTHER
    bench = open_bench(folder, manifest, SHAPE, qnn_provider(manifest))
    bench.run(segment("a", tokens, 0, (0, 1)))
    sequence = ChainedSequence.start(cpu.output, twin, SHAPE)
    sequence.extend(tokens)
    count = len(tokens)
    for layer in range(manifest.model.layers):
        for emulated, computed in zip(bench.pool(), (sequence.keys[layer], sequence.values[layer]), strict=True):
            found = emulated[layer][..., :count] if computed.shape[-1] == count else emulated[layer][..., :count, :]
            difference = np.abs(found.astype(int) - computed.astype(int))
            assert difference.max() <= 4
            assert (difference > 1).mean() < 0.01
    bench.runtime.close()
