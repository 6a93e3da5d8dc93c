"""Fused graphs as X Elite binaries in the HTP emulator: compiled with updated caches, written in place, served."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import shape_table
from engine.runtime.fused import FusedRuntime
from engine.runtime.qnn.provider import EMULATOR, qnn_provider
from engine.runtime.qnn.trial import check_bundle
from tests.engine.runtime.fused.steps import HandSteps
from tests.live import serving
from tests.long.npu.test_server import ANSWER, ask

FIRST = tuple((index * 31 + 7) % 3000 for index in range(14))
SECOND = (9, 9, 140, 3, 250, 61, 12)


def opened(folder: Path, by_graph: bool | None) -> FusedRuntime:
    manifest = load_manifest(folder)
    return FusedRuntime(folder, manifest, shape_table(manifest, 1), qnn_provider(manifest), by_graph)


@pytest.mark.parametrize("layout", ["fused fp16", "fused w8a16"])
def test_updated_caches_lie_in_the_memory_of_the_inputs_and_equal_copies(
    npu_bundle: Callable[[str], Path], layout: str, tmp_path: Path
) -> None:
    """Both ways to update give the same caches and logits, byte for byte; the first is what is chosen."""
    folder = npu_bundle(layout)
    check_bundle(folder, load_manifest(folder), tmp_path)
    found = []
    for by_graph in (None, False):
        runtime = opened(folder, by_graph)
        assert runtime.device == EMULATOR
        assert runtime.by_graph is (by_graph is None)
        steps = HandSteps(runtime, columns=160 - 1)
        logits = [steps.run(16, (0, FIRST)), steps.run(16, (1, SECOND[:4]), (0, (3,)))]
        logits += [steps.run(16, (1, SECOND[4:]), (0, (4,))), steps.run(1, (1, (50,))), steps.run(1, (0, (5,)))]
        found.append((logits, [steps.computed(number) for number in range(2)]))
        runtime.close()
    for logits, caches in found[1:]:
        for got, want in zip(logits, found[0][0], strict=True):
            np.testing.assert_array_equal(got, want)
        for mine, theirs in zip(caches, found[0][1], strict=True):
            for side in range(2):
                np.testing.assert_array_equal(mine[side], theirs[side])


@pytest.mark.parametrize("layout", ["fused fp16", "fused w8a16"])
def test_neighbours_and_stale_columns_change_no_bit(npu_bundle: Callable[[str], Path], layout: str) -> None:
    runtime = opened(npu_bundle(layout), None)
    alone = HandSteps(runtime, columns=160 - 1)
    expected = [alone.run(16, (0, FIRST)), alone.run(16, (0, (33,)))]
    runtime.blocks.free([0])
    packed = HandSteps(runtime, columns=160 - 1)
    packed.run(16, (1, SECOND))
    for number in (1,):
        past = len(packed.tokens[number])
        extreme = 255 if packed.cache(number).keys.dtype == np.uint8 else 100
        packed.cache(number).keys[..., past:] = extreme
        packed.cache(number).values[..., past:, :] = extreme
    together = packed.run(16, (0, FIRST), (1, (8,)))
    np.testing.assert_array_equal(together[0], expected[0][0])
    np.testing.assert_array_equal(packed.run(16, (1, (9, 10)), (0, (33,)))[1], expected[1][0])
    runtime.close()


@pytest.mark.parametrize("layout", ["fused fp16", "fused w8a16", "fused slots"])
def test_the_readme_question_has_its_answer(npu_bundle: Callable[[str], Path], layout: str, npu_cache: Path) -> None:
    with serving(str(npu_bundle(layout)), cache=npu_cache) as server:
        assert ask(server) == ANSWER
        assert any("fused caches are written by" in line for line in server.lines)


def test_one_binary_holds_all_graphs_with_one_copy_of_the_weights(npu_bundle: Callable[[str], Path]) -> None:
    """As a device wants them; the emulator cannot load such a binary."""
    shared, single = npu_bundle("fused shared"), npu_bundle("fused fp16")
    npu = load_manifest(shared).npu
    assert npu is not None and [len(names) for names in npu.binaries.values()] == [2]
    assert npu.not_genie == "Genie has no graphs of two caches"
    alone = sum(path.stat().st_size for path in single.glob("*.bin"))
    assert sum(path.stat().st_size for path in shared.glob("*.bin")) < 0.8 * alone
