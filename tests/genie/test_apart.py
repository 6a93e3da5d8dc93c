"""Parts that run by themselves: the same tokens, and caches are written while the parts behind run."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from engine.bundle.check import check_contract
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, load_manifest
from engine.bundle.tensors import embedding_of, embedding_width, encoding_of
from engine.bundle.variant import ShapeTable, StepShape
from engine.config import EngineConfig
from engine.errors import StepFailed
from engine.request import Request, SamplingParams
from engine.runtime.interface import Runtime
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.sessions import Binding, cpu_provider
from engine.worker.assembly import Assembled, assemble
from tests.engine.runtime.watched import watch_writes
from tests.genie.generator import Recipe, generate
from tests.genie.twin import convert_to_twin

PROMPT = (5, 17, 99, 123, 300, 42, 7, 8, 9, 10, 11)
GUARD_S = 30.0
FOUR = Recipe(parts=4, head_alone=True, order="apart")


def folder_of(checkpoint: Path, tmp_path: Path, recipe: Recipe) -> Path:
    made = generate(checkpoint, tmp_path / f"bundle-{recipe.order}", recipe)
    return convert_to_twin(made, tmp_path / "cache")


def start(folder: Path, observe: Callable[[str], None] = lambda event: None) -> Assembled:
    def open_observed(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
        runtime = OnnxRuntime(folder, manifest, shapes, cpu_provider(1))
        watch_writes(runtime._writes, observe)
        bind = runtime._bind_part

        def bind_watched(shape: StepShape, graph: GraphSpec, *buffers: Any) -> Binding:
            return Watched(bind(shape, graph, *buffers), graph.part, observe)

        runtime._bind_part = bind_watched  # type: ignore[method-assign]
        return runtime

    return assemble(EngineConfig(bundle=str(folder)), open_observed)


class Watched(Binding):
    """A part that says when it runs. ending: called before it has run."""

    def __init__(
        self, part: Binding, number: int, observe: Callable[[str], None], ending: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(part.name, part.session, part.binding, part.buffers)
        self._number = number
        self._observe = observe
        self._ending = ending

    def run(self) -> None:
        self._observe(f"running part {self._number}")
        super().run()
        self._ending()
        self._observe(f"ran part {self._number}")


def answers(made: Assembled, prompts: dict[str, tuple[int, ...]], count: int = 12) -> dict[str, list[int]]:
    """What comes of prompts that are sent at once; failed ones give what they gave."""
    for name, prompt in prompts.items():
        made.loop.add(Request(name, prompt, SamplingParams(count, temperature=0.0)), (), 1, 0.0)
    found: dict[str, list[int]] = {name: [] for name in prompts}
    while made.loop.scheduler.has_work:
        for event in made.loop.step().events:
            found[event.id] += event.token_ids
    return found


def end(made: Assembled) -> None:
    made.loop.close()
    made.runtime.close()


@pytest.mark.parametrize(
    "recipe",
    [
        FOUR,
        replace(FOUR, parts=5, same_hidden_names=False, scatter=True),
        replace(FOUR, parts=2, head_alone=False, precision="w4"),
        replace(FOUR, parts=1, head_alone=False),
        replace(FOUR, kv_only_rows=(8,)),
        replace(FOUR, shapes=(StepShape(1, 15), StepShape(1, 63), StepShape(8, 8), StepShape(8, 56))),
    ],
    ids=["four", "other names, in place", "two", "one", "prefill without logits", "several contexts"],
)
def test_the_same_tokens(checkpoint: Path, tmp_path: Path, recipe: Recipe) -> None:
    prompts = {"a": PROMPT, "b": PROMPT[2:], "c": (9,)}
    apart, chained = (folder_of(checkpoint, tmp_path, replace(recipe, order=order)) for order in ("apart", "chained"))
    check_contract(load_manifest(apart))
    found = []
    for folder in (apart, chained):
        made = start(folder)
        found.append(answers(made, prompts))
        end(made)
    assert found[0] == found[1]


def test_every_part_is_a_graph(checkpoint: Path, tmp_path: Path) -> None:
    manifest = load_manifest(folder_of(checkpoint, tmp_path, FOUR))
    assert [(graph.name, graph.kind, graph.first_layer, graph.last_layer) for graph in manifest.graphs[:4]] == [
        ("ar1_cl1_1_of_4", GraphKind.LUT, None, None),
        ("ar1_cl64_2_of_4", GraphKind.DECODER, 0, 1),
        ("ar1_cl64_3_of_4", GraphKind.DECODER, 2, 2),
        ("ar1_cl1_4_of_4", GraphKind.LMHEAD, None, None),
    ]


@dataclass
class Timeline:
    """What happened in which order. The writer begins with the first layers only once part 3 runs, and part 3 does not
    end before they are written: an order that only overlapping work can have."""

    events: list[str] = field(default_factory=list)
    in_part_3: threading.Event = field(default_factory=threading.Event)
    written: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: str) -> None:
        if event == "writing layers 0 to 1":
            assert self.in_part_3.wait(GUARD_S), "part 3 does not run meanwhile"
        self.events.append(event)
        if event == "running part 3":
            self.in_part_3.set()
        if event == "wrote layers 0 to 1":
            self.written.set()


def hold_part_3(runtime: Runtime, timeline: Timeline, fails: bool = False) -> None:
    """It does not end before the first layers are written, in every step that is bound already. fails: then."""
    assert isinstance(runtime, OnnxRuntime)

    def ending() -> None:
        assert timeline.written.wait(GUARD_S), "nothing was written meanwhile"
        if fails:
            raise StepFailed("the graph broke")

    for bound in runtime._steps.values():
        part, layers = bound.parts[2]
        bound.parts[2] = (Watched(part, 3, timeline, ending), layers)


def lay_out(made: Assembled) -> None:
    for shape in made.runtime.shapes.fixed:
        made.runtime.lay_out(shape)
        for other in made.runtime.shapes.fixed:
            if other.past == shape.past:
                made.runtime.lay_out(other)


def test_caches_are_written_while_later_parts_run(checkpoint: Path, tmp_path: Path) -> None:
    recipe = replace(FOUR, shapes=(StepShape(8, 56),))
    folder = folder_of(checkpoint, tmp_path, recipe)
    made = start(folder)
    expected = answers(made, {"a": PROMPT}, 3)
    end(made)
    timeline = Timeline()
    timeline.in_part_3.set()
    made = start(folder, timeline)
    lay_out(made)
    timeline.events.clear()
    timeline.in_part_3.clear()
    hold_part_3(made.runtime, timeline)
    made.loop.add(Request("a", PROMPT, SamplingParams(3, temperature=0.0)), (), 1, 0.0)
    made.loop.step()
    seen = timeline.events
    order = [
        "running part 1",
        "ran part 1",
        "running part 2",
        "ran part 2",
        "running part 3",
        "writing layers 0 to 1",
        "wrote layers 0 to 1",
        "ran part 3",
    ]
    assert seen[: len(order)] == order
    tokens: list[int] = []
    while made.loop.scheduler.has_work:
        tokens += [token for event in made.loop.step().events for token in event.token_ids]
    end(made)
    assert tokens == expected["a"]
    # The last layers are written while the next step runs parts that do not touch them.
    later = seen[len(order) :]
    assert later.index("writing layers 2 to 2") < later.index("wrote layers 2 to 2") < later.index("running part 3")


def test_a_pass_that_fails_after_writing_changes_nothing_visible(checkpoint: Path, tmp_path: Path) -> None:
    folder = folder_of(checkpoint, tmp_path, replace(FOUR, shapes=(StepShape(8, 56),)))
    timeline = Timeline()
    timeline.in_part_3.set()
    made = start(folder, timeline)
    prompts = {"a": PROMPT, "b": PROMPT[3:]}
    expected = answers(made, prompts, 6)
    runtime = made.runtime
    assert isinstance(runtime, OnnxRuntime)
    sound = {key: list(bound.parts) for key, bound in runtime._steps.items()}
    timeline.events.clear()
    hold_part_3(runtime, timeline, fails=True)
    made.loop.add(Request("fails", (7, *PROMPT), SamplingParams(6, temperature=0.0)), (), 1, 0.0)
    assert [failure.id for failure in made.loop.step().failures] == ["fails"]
    assert "wrote layers 0 to 1" in timeline.events
    for key, bound in runtime._steps.items():
        bound.parts = sound[key]
    assert answers(made, prompts, 6) == expected
    end(made)


@pytest.mark.parametrize("precision", ["twin", "w4", "w4a16"])
def test_prompts_of_embeddings(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    """What the embedding part makes of tokens, sent in their place; beside a prompt of tokens."""
    folder = folder_of(checkpoint, tmp_path, replace(FOUR, precision=precision))
    manifest = load_manifest(folder)
    assert embedding_width(manifest) == manifest.model.hidden == 64
    made = start(folder)
    expected = answers(made, {"a": PROMPT, "b": PROMPT[3:]})
    table = next(graph for graph in manifest.graphs if graph.kind is GraphKind.LUT and graph.rows == 1)
    session = ort.InferenceSession(str(folder / table.file), providers=["CPUExecutionProvider"])
    encoding = encoding_of(embedding_of(table))
    rows = [
        encoding.decode(session.run(None, {"input_ids": np.array([[token]], np.int32)})[0][0, 0]) for token in PROMPT
    ]
    embeds = np.stack(rows).astype("<f4").tobytes()
    sampling = SamplingParams(12, temperature=0.0)
    made.loop.add(Request("a", (0,) * len(PROMPT), sampling, prompt_embeds=embeds), (), 1, 0.0)
    made.loop.add(Request("b", PROMPT[3:], sampling), (), 1, 0.0)
    found: dict[str, list[int]] = {"a": [], "b": []}
    while made.loop.scheduler.has_work:
        for event in made.loop.step().events:
            found[event.id] += event.token_ids
    end(made)
    assert found == expected


def test_chained_parts_take_tokens_only(checkpoint: Path, tmp_path: Path) -> None:
    for recipe in (
        replace(FOUR, order="chained"),
        replace(FOUR, kv_only_rows=(8,)),
        replace(FOUR, parts=1, head_alone=False),
    ):
        folder = folder_of(checkpoint, tmp_path / f"{recipe.parts} {recipe.kv_only_rows}", recipe)
        assert embedding_width(load_manifest(folder)) is None
