"""Rows of an image that see each other both ways, also under windows, against transformers: every logit of a prompt."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import load_manifest
from engine.bundle.segments import MASKED_ATTENTION
from engine.bundle.variant import pin, shape_table
from engine.compile.arguments import CompileArguments, KvType, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.core.plan import Segment
from engine.core.sequence import Sequence
from engine.request import PromptImage, Request, SamplingParams
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.engine.runtime.test_onnx_segments import run
from tests.vision_facts import GEMMA, GEMMA_ROWS
from tests.vision_models import write_gemma3

FIRSTS, TOKENS = (90, 206), 250  # far enough that memory of windows is used again
OTHER = 120
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = {"some windows": [SLIDING, FULL, SLIDING], "all": [SLIDING] * 3}


@pytest.fixture(scope="module", params=LAYERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("gemma3")
    return write_gemma3(folder / "source", layer_types=LAYERS[request.param]), folder


def opened(folder: Path, kv: KvType = KvType.FLOAT32, pinned: int = 0) -> SegmentRuntime:
    output = folder / kv.value
    if not output.exists():
        compile_bundle(CompileArguments(folder / "source", output, quant=Quant.FP32, kv=kv), SilentProgress())
    manifest = load_manifest(output)
    assert [graph.name for graph in manifest.graphs if graph.name.startswith(MASKED_ATTENTION)] == [MASKED_ATTENTION]
    shapes = shape_table(manifest, 128)
    return SegmentRuntime(output, manifest, pin(shapes, pinned) if pinned else shapes, cpu_provider(1))


def prompt(width: int) -> Request:
    random = np.random.default_rng(2)
    ids = random.integers(0, 256, TOKENS)
    for first in FIRSTS:
        ids[first : first + GEMMA_ROWS] = GEMMA.token
    rows = [random.normal(0, 4, (GEMMA_ROWS, width)).astype("<f4").tobytes() for _ in FIRSTS]
    images = tuple(
        PromptImage(first, GEMMA_ROWS, b"", b"", features, both_ways=True)
        for first, features in zip(FIRSTS, rows, strict=True)
    )
    return Request("a", tuple(ids.tolist()), SamplingParams(1), images=images)


def expected(model: Any, request: Request) -> np.ndarray:
    ids = torch.tensor([request.prompt_ids])
    with torch.no_grad():
        embeds = model.get_input_embeddings()(ids)
        for image in request.images:
            rows = np.frombuffer(image.features, "<f4").reshape(image.tokens, -1).copy()
            embeds[0, image.first : image.first + image.tokens] = torch.tensor(rows)
        kinds = (ids == GEMMA.token).int()
        return np.asarray(model(inputs_embeds=embeds, token_type_ids=kinds, use_cache=False).logits[0])


def part(sequence: Sequence, first: int, end: int, blocks: range) -> Segment:
    tokens, columns = tuple(sequence.tokens[first:end]), tuple(blocks[0] * 16 + row for row in range(first, end))
    rows = GEMMA_ROWS if first in FIRSTS else 1
    return Segment(
        sequence, tokens, first, tuple(blocks[: -(-first // 16)]), first, columns, len(tokens), block_rows=rows
    )


def found(runtime: SegmentRuntime, request: Request, every: int) -> np.ndarray:
    """Logits of a prompt in text of so many rows at most and whole images, beside a neighbour that goes on."""
    images = {edge for first in FIRSTS for edge in (first, first + GEMMA_ROWS)}
    inside = {row for first in FIRSTS for row in range(first + 1, first + GEMMA_ROWS)}
    edges = sorted({0, TOKENS, *images, *(set(range(0, TOKENS, every)) - inside)})
    sequence = Sequence(request, 0, 0, list(request.prompt_ids))
    beside = Sequence(Request("b", (5,) * OTHER, SamplingParams(1)), 1, 0, [5] * OTHER)
    logits: list[np.ndarray] = []
    for index, (first, end) in enumerate(pairwise(edges)):
        mine = part(sequence, first, end, range(20, 40))
        neighbour = [part(beside, index, index + 1, range(8))] if index < OTHER and index not in FIRSTS else []
        logits.append(run(runtime, mine, *neighbour)[: end - first])
    return np.concatenate(logits)


@pytest.mark.parametrize("every", [1, 23, TOKENS])
def test_logits_are_those_of_transformers(made: tuple[Any, Path], every: int) -> None:
    model, folder = made
    request = prompt(model.config.text_config.hidden_size)
    logits, wanted = found(opened(folder), request, every), expected(model, request)
    assert np.abs(logits - wanted).max() / np.abs(wanted).max() < 1e-4


def test_one_shape_for_every_step(made: tuple[Any, Path]) -> None:
    """All columns are kept then, and the mask alone hides what a window does."""
    model, folder = made
    request, runtime = prompt(model.config.text_config.hidden_size), opened(folder, pinned=32)
    logits, wanted = found(runtime, request, 16), expected(model, request)
    assert np.abs(logits - wanted).max() / np.abs(wanted).max() < 1e-4
    assert (found(opened(folder, pinned=32), request, 7)[FIRSTS[1] :] == logits[FIRSTS[1] :]).all()


def test_int8_caches(made: tuple[Any, Path]) -> None:
    model, folder = made
    request = prompt(model.config.text_config.hidden_size)
    logits, wanted = found(opened(folder, KvType.INT8), request, 23), expected(model, request)
    assert 0 < np.abs(logits - wanted).max() < 0.2 * np.abs(wanted).max()
