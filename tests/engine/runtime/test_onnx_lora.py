"""Tiny real graphs that take adapters: a row computes what merged weights would, whoever shares its step."""

from pathlib import Path

import numpy as np
import pytest

from engine.adapters.adapter import read_adapters
from engine.bundle.manifest import load_manifest
from engine.bundle.variant import pin, shape_table
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.core.plan import Segment
from engine.core.sequence import Sequence
from engine.request import Request, SamplingParams
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from engine.worker.step_times import measure
from tests.bundles import Bundles
from tests.engine.adapters.peft_folders import merge, write_adapter
from tests.engine.runtime.test_onnx_segments import PROMPT, open_segments, run
from tests.engine.worker.quiet_clock import quiet_clock

LORA, LORA_INT4 = "segments lora", "segments lora int4"
OTHER = tuple((i * 17 + 3) % 256 for i in range(21))
FORMS: dict[str, tuple[dict[str, object], dict[str, float]]] = {
    "all modules": ({}, {"": 2.0}),
    "query and value": ({"names": ("q_proj", "v_proj"), "rank": 7, "alpha": 21.0}, {"": 3.0}),
    "rslora": ({"rank": 16, "alpha": 2.0, "use_rslora": True}, {"": 0.5}),
    "patterns": (
        {"rank_pattern": {"up_proj": 9}, "alpha_pattern": {"q_proj": 2.0}},
        {"": 2.0, "up_proj": 8 / 9, "q_proj": 0.5},
    ),
    "bfloat16": ({"dtype": "bfloat16"}, {"": 2.0}),
}


def adapters(bundle: Path, folder: Path) -> dict[str, Path]:
    """Three adapters: of everything, of two modules in one layer, and of other modules at another rank."""
    modules = load_manifest(bundle).lora
    return {
        "all": write_adapter(folder / "all", modules, (0, 1)),
        "two": write_adapter(folder / "two", modules, (1,), ("q_proj", "v_proj"), rank=3, seed=2),
        "ffn": write_adapter(folder / "ffn", modules, (0, 1), ("gate_proj", "down_proj"), rank=8, seed=3),
    }


def open_lora(bundle: Path, folders: dict[str, Path], pinned: int = 0) -> SegmentRuntime:
    manifest = load_manifest(bundle)
    shapes = shape_table(manifest, 64)
    shapes = pin(shapes, pinned) if pinned else shapes
    return SegmentRuntime(bundle, manifest, shapes, cpu_provider(1), read_adapters(folders, manifest))


def part(adapter: str, tokens: tuple[int, ...], position: int, blocks: tuple[int, ...]) -> Segment:
    columns = tuple(blocks[i // 16] * 16 + i % 16 for i in range(position, position + len(tokens)))
    sequence = Sequence(Request("r", (1,), SamplingParams(max_tokens=1), adapter=adapter), 0, 0, [1])
    return Segment(sequence, tokens, position, blocks[: -(-position // 16)], position, columns, 1)


def whole(adapter: str, tokens: tuple[int, ...], blocks: tuple[int, ...]) -> Segment:
    """A prompt of which all logits are read."""
    made = part(adapter, tokens, 0, blocks)
    return Segment(made.sequence, tokens, 0, (), 0, made.targets, len(tokens))


@pytest.mark.parametrize("form", FORMS)
def test_an_adapters_rows_have_the_logits_of_merged_weights(bundles: Bundles, tmp_path: Path, form: str) -> None:
    options, scales = FORMS[form]
    bundle = bundles(LORA)
    adapter = write_adapter(tmp_path / "adapter", load_manifest(bundle).lora, (0, 1), **options)  # type: ignore[arg-type]
    merged = merge(bundles.source, adapter, tmp_path / "merged", scales)
    output = tmp_path / "bundle"
    arguments = CompileArguments(merged, output, quant=Quant.FP32, parity_tokens=8, layout=Layout.SEGMENTS)
    compile_bundle(arguments, SilentProgress())
    expected = run(open_segments(output), whole("", PROMPT, (4, 2, 9)))
    runtime = open_lora(bundle, {"a": adapter})
    plain = run(runtime, whole("", PROMPT, (0, 1, 3)))
    found = run(runtime, whole("a", PROMPT, (4, 2, 9)))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert np.abs(found - plain).max() > 0.1 * np.abs(plain).max()  # it really changes something
    after = run(runtime, part("a", (33,), 40, (4, 2, 9)))
    again = run(open_lora(bundle, {"a": adapter}), whole("a", (*PROMPT, 33), (0, 1, 2)))
    np.testing.assert_allclose(after[0], again[-1], atol=1e-4 * np.abs(expected).max())


def test_rows_without_adapter_have_the_logits_of_the_plain_bundle(bundles: Bundles, tmp_path: Path) -> None:
    expected = run(open_segments(bundles("segments")), whole("", PROMPT, (4, 2, 9)))
    bundle = bundles(LORA)
    for folders in ({}, adapters(bundle, tmp_path)):
        found = run(open_lora(bundle, folders), whole("", PROMPT, (4, 2, 9)))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("layout", "bound"), [(LORA, 1e-5), (LORA_INT4, 2e-2)])
def test_rows_of_different_adapters_and_none_share_a_step(
    bundles: Bundles, tmp_path: Path, layout: str, bound: float
) -> None:
    """Prompts, then decodes beside a prompt: each as beside a prompt without adapter, so in the same storage.

    Where activations are rounded, other rows of a step may turn a last bit.
    """
    bundle = bundles(layout)
    runtime = open_lora(bundle, adapters(bundle, tmp_path))
    names = ("two", "", "all", "ffn")
    alone = [run(runtime, part(name, OTHER[: 9 + i], 0, (i, i + 10)))[0] for i, name in enumerate(names)]
    filler = part("", PROMPT[:20], 0, (40, 41))
    after = [run(runtime, filler, part(name, (5,), 9 + i, (i, i + 10)), keep=False)[1] for i, name in enumerate(names)]
    blocks = [(20 + i, 30 + i) for i in range(4)]
    together = run(runtime, *(part(name, OTHER[: 9 + i], 0, blocks[i]) for i, name in enumerate(names)))
    decodes = run(
        runtime,
        part("two", PROMPT[:20], 0, (40, 41)),
        *(part(name, (5,), 9 + i, blocks[i]) for i, name in enumerate(names)),
    )[1:]
    for found, expected in ((together, alone), (decodes, after)):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=bound * np.abs(theirs).max())
    distances = [np.abs(together[i] - together[j]).max() for i in range(4) for j in range(i)]
    assert min(distances) > 0.1  # other prompts, and other models


def test_a_prompt_means_something_else_to_each_adapter(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles(LORA)
    runtime = open_lora(bundle, adapters(bundle, tmp_path))
    found = run(runtime, *(part(name, OTHER[:14], 0, (i,)) for i, name in enumerate(("", "all", "two", "ffn"))))
    assert all(np.abs(found[i] - found[j]).max() > 0.05 * np.abs(found).max() for i in range(4) for j in range(i))


def test_one_shape_gives_the_same_bits_whoever_the_neighbours_are(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles(LORA)
    runtime = open_lora(bundle, adapters(bundle, tmp_path), pinned=32)
    alone = run(runtime, part("two", OTHER[:9], 0, (0,)))[0]
    beside = run(runtime, part("all", OTHER[:12], 0, (1,)), part("two", OTHER[:9], 0, (2,)), part("", (3,), 0, (4,)))[1]
    assert (alone == beside).all()


def test_a_step_reads_the_adapters_it_has_and_those_between(bundles: Bundles, tmp_path: Path) -> None:
    """Ranks that the graphs compute with: a lone zero without adapters, one adapter's, all from 'all' to 'ffn'."""
    bundle = bundles(LORA)
    runtime = open_lora(bundle, adapters(bundle, tmp_path))
    seen = []
    for names in (("",), ("all",), ("two",), ("ffn", "all")):
        run(runtime, *(part(name, OTHER[:2], 0, (i,)) for i, name in enumerate(names)), keep=False)
        masks = runtime._adapters.masks(1)
        seen.append([masks[name].shape[2] for name in ("q_proj", "gate_proj", "o_proj")])
    assert seen == [[1, 1, 1], [4, 4, 4], [3, 1, 1], [7, 12, 4]]


def test_steps_are_timed_without_adapters(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles(LORA)
    assert measure(open_lora(bundle, adapters(bundle, tmp_path)), quiet_clock(0.01)).times
