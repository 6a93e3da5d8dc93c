"""A prompt of embeddings is the prompt whose tokens have them: same answers, but no prefix is shared with it."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from engine.bundle.manifest import GraphKind, load_manifest
from engine.bundle.tensors import embedding_width
from engine.client.chat_prompts import check_embeds
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.request import Request, SamplingParams
from engine.worker.assembly import Assembled, assemble
from tests.bundles import Bundles

IDS = tuple(5 + (11 * index) % 200 for index in range(40))


def embeds_of(folder: Path, ids: tuple[int, ...]) -> bytes:
    """What the bundle's own embedding graph makes of ids; of the free one, or of one with as many rows."""
    table = next(graph for graph in load_manifest(folder).graphs if graph.kind is GraphKind.LUT)
    session = ort.InferenceSession(str(folder / table.file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input_ids": np.array([ids], np.int32)})
    return np.ascontiguousarray(found[0], "<f4").tobytes()


def request(name: str, ids: tuple[int, ...], embeds: bytes = b"", **params: object) -> Request:
    sampling = SamplingParams(10, temperature=0.0, logprobs=0, **params)  # type: ignore[arg-type]
    return Request(name, ids, sampling, prompt_embeds=embeds)


def answers(made: Assembled, *requests: Request) -> dict[str, tuple[list[int], list[float], int]]:
    """Tokens, log-probabilities, cached tokens."""
    for each in requests:
        made.loop.add(each, (), 1, 0.0)
    found: dict[str, tuple[list[int], list[float], int]] = {each.id: ([], [], 0) for each in requests}
    while made.loop.scheduler.has_work:
        report = made.loop.step()
        assert not report.failures, report.failures
        for event in report.events:
            tokens, values, _ = found[event.id]
            tokens += event.token_ids
            values += [entry.logprob for entry in event.logprobs]
            found[event.id] = (tokens, values, event.cached_tokens)
    return found


@pytest.mark.parametrize("settings", [{}, {"max_rows": 8}, {"deterministic": True}], ids=str)
def test_the_same_as_its_tokens(bundles: Bundles, settings: dict[str, object]) -> None:
    folder = bundles("lut")
    made = assemble(EngineConfig(bundle=str(folder), prefix_cache=False, **settings))  # type: ignore[arg-type]
    embedded = request("embedded", (0,) * len(IDS), embeds_of(folder, IDS))
    found = answers(made, request("ids", IDS), embedded, request("neighbour", IDS[:7]))
    assert found["embedded"][0] == found["ids"][0]
    assert found["embedded"][1] == pytest.approx(found["ids"][1], abs=1e-4)
    alone = answers(made, request("neighbour", IDS[:7]))
    made.loop.close()
    made.runtime.close()
    assert found["neighbour"][0] == alone["neighbour"][0]


def test_prefixes_are_shared_with_equal_embeddings_only(bundles: Bundles) -> None:
    folder = bundles("lut")
    made = assemble(EngineConfig(bundle=str(folder), deterministic=True))
    placeholders, embeds = (0,) * len(IDS), embeds_of(folder, IDS)
    other = embeds_of(folder, (*IDS[:-1], 7))
    expected = answers(made, request("ids", IDS))["ids"][0]
    first = answers(made, request("a", placeholders, embeds))["a"]
    assert (first[0], first[2]) == (expected, 0)
    again = answers(made, request("a", placeholders, embeds))["a"]
    assert (again[0], again[2]) == (expected, 32)
    assert answers(made, request("other", placeholders, other))["other"][2] == 0
    zeros = answers(made, request("zeros", placeholders))["zeros"]
    assert zeros[2] == 0 and zeros[0] != expected  # ids that look like the placeholders are another prompt
    assert answers(made, request("a", placeholders, embeds))["a"][0] == expected
    made.loop.close()
    made.runtime.close()


def test_penalties_see_generated_tokens_only(bundles: Bundles) -> None:
    """The placeholder is no token that was there: id 0 is not less likely for it."""
    folder = bundles("lut")
    made = assemble(EngineConfig(bundle=str(folder), deterministic=True))
    bias = ((0, 100.0),)
    embedded = request("a", (0,) * 40, embeds_of(folder, IDS), repetition_penalty=10.0, logit_bias=bias)
    unlike = request("b", tuple(token for token in IDS), repetition_penalty=10.0, logit_bias=bias)
    found = answers(made, embedded, unlike)
    made.loop.close()
    made.runtime.close()
    assert 0 not in IDS
    assert found["a"][0][0] == 0 == found["b"][0][0]


def test_which_bundles_take_them(bundles: Bundles) -> None:
    widths = {
        layout: embedding_width(load_manifest(bundles(layout))) for layout in ("lut", "free", "fixed", "segments")
    }
    assert widths == {"lut": load_manifest(bundles("lut")).model.hidden, "free": None, "fixed": None, "segments": None}
    embeds = np.zeros((2, 64), np.float32).tobytes()
    with pytest.raises(InvalidRequest, match="'prompt_embeds': this bundle's graphs take token ids only"):
        check_embeds(load_manifest(bundles("free")), request("a", (0, 0), embeds))
    with pytest.raises(InvalidRequest, match=r"'prompt_embeds' has \d+ bytes, \d+ are expected"):
        check_embeds(load_manifest(bundles("lut")), request("a", (0, 0), embeds[:-4]))
    check_embeds(load_manifest(bundles("free")), request("a", (1, 2)))


def test_a_worker_that_cannot_take_them_fails_that_request(bundles: Bundles) -> None:
    made = assemble(EngineConfig(bundle=str(bundles("free")), deterministic=True))
    made.loop.add(request("a", (0, 0), bytes(2 * 4 * 64)), (), 1, 0.0)
    (failure,) = made.loop.step().failures
    assert "its graphs take token ids, not embeddings" in failure.message
    assert answers(made, request("b", IDS))["b"][0]
    made.loop.close()
    made.runtime.close()


def test_another_worker_goes_on_with_it(bundles: Bundles) -> None:
    folder = bundles("lut")
    made = assemble(EngineConfig(bundle=str(folder), deterministic=True))
    embedded = request("a", (0,) * len(IDS), embeds_of(folder, IDS))
    whole = answers(made, embedded)["a"][0]
    made.loop.scheduler.blocks.trim(0)
    made.loop.add(embedded, tuple(whole[:4]), 1, 0.0)
    tokens: list[int] = []
    while made.loop.scheduler.has_work:
        tokens += [token for event in made.loop.step().events for token in event.token_ids]
    made.loop.close()
    made.runtime.close()
    assert tokens == whole[4:]
