"""Integer graphs as X Elite binaries in the HTP emulator."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, QualityLevel, Quant, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.core.plan import StepPlan
from engine.demo.location import demo_folder
from engine.runtime.interface import pack
from tests.engine.compile.graphs.integer.conftest import Bench, open_bench, segment
from tests.plain_bundle import ChainedSequence

pytest.importorskip("onnxruntime_qnn")

from engine.runtime.qnn.provider import EMULATOR, qnn_provider
from engine.runtime.qnn.trial import check_bundle

PROMPT = tuple((index * 31 + 7) % 3000 for index in range(20))
OTHER = (9, 9, 140, 3, 250, 61, 12)
LONG = tuple(map(int, np.random.default_rng(1).integers(0, 3000, 80)))
SHAPE = StepShape(32, 224)


@pytest.fixture(scope="module", params=[Quant.W8A16, Quant.W4A16])
def bundle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, short_text: Path
) -> tuple[Path, Manifest]:
    output = tmp_path_factory.mktemp("emulator") / request.param
    arguments = CompileArguments(
        demo_folder(),
        output,
        target=Target.X_ELITE,
        quant=request.param,
        quality=QualityLevel.GOOD,
        rows=(32,),
        context=(256,),
        share_weights=False,
        parity_tokens=200,
        calibration=short_text,
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
    """Sums of integers have no order: whatever rows and pages a sequence gets, beside whomever, no bit changes."""
    generator = np.random.default_rng(3)
    pages = tuple(range(6))
    alone = [bench.run(segment("a", LONG[start : start + 20], start, pages))[0] for start in range(0, 80, 20)]
    alone.append(bench.run(segment("a", (33,), 80, pages))[0])
    keys, values = cached(bench, pages, 81)
    for trial in range(4):
        order = tuple(map(int, generator.permutation(14)))
        mine, theirs = order[:6], order[6:]
        found = []
        for start in range(0, 80, 20):
            other = segment("b", LONG[: 1 + trial], start // 2, theirs)
            parts = [segment("a", LONG[start : start + 20], start, mine), other]
            found.append(bench.run(*parts)[0] if trial % 2 else bench.run(*reversed(parts))[1])
        found.append(bench.run(segment("a", (33,), 80, mine), segment("b", (5,), 17, theirs))[0])
        np.testing.assert_array_equal(found, alone)
        for got, want in zip(cached(bench, mine, 81), (keys, values), strict=True):
            np.testing.assert_array_equal(got, want)


def cached(bench: Bench, pages: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the first tokens of a sequence, in their order."""
    columns = [pages[index // 16] * 16 + index % 16 for index in range(count)]
    keys, values = bench.pool()
    return keys[..., columns].copy(), values[..., columns, :].copy()


def test_extreme_codes_in_stale_columns_change_no_bit(bench: Bench) -> None:
    bench.run(segment("a", PROMPT, 0, (0, 1)))
    batch = pack(StepPlan(SHAPE, (segment("a", (33,), 20, (0, 1)),)), 16)
    clean = bench.runtime.run(batch).decoded().copy()
    keys, values = bench.pool()
    for key_code, value_code in ((255, 0), (0, 255)):
        keys[..., 32:] = key_code
        values[..., 32:, :] = value_code
        np.testing.assert_array_equal(bench.runtime.run(batch).decoded(), clean)


def test_the_cpu_computes_the_same_graphs_within_few_codes(
    bundle: tuple[Path, Manifest], tmp_path: Path, short_text: Path
) -> None:
    folder, manifest = bundle
    cpu = CompileArguments(
        demo_folder(),
        tmp_path / "cpu",
        quant=Quant(manifest.quant),
        quality=QualityLevel.GOOD,
        rows=(32,),
        context=(256,),
        parity_tokens=2,
        calibration=short_text,
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
