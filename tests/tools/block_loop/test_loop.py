"""The loop over an exported graph, on a forward function whose logits are given."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.compile.graphs.block_export import BlockExport
from tools.block_loop import BlockLoop, LoopOptions, StepKind, Tensor

EXPORT = BlockExport(
    export_version=1,
    graph="model.onnx",
    batch=1,
    block=4,
    context=16,
    layers=1,
    kv_heads=1,
    head_dim=2,
    vocab=12,
    dtype="float32",
    mask_layers=1,
    backend="cpu",
    quant="fp32",
    mask_token=11,
    stop_ids=(0,),
)


class Scripted:
    """Says token `position % 10 + 1` everywhere, as surely as `sure` tells by position; remembers what it was given."""

    def __init__(self, sure: Sequence[float] = ()) -> None:
        self.seen: list[dict[str, Tensor]] = []
        self.sure = dict(enumerate(sure))
        self.says: dict[int, int] = {}

    def __call__(self, inputs: dict[str, Tensor]) -> tuple[NDArray[np.float32], Tensor]:
        self.seen.append(inputs)
        logits = np.zeros((1, 4, 12), np.float32)
        for row, position in enumerate(inputs["positions"][0]):
            token = self.says.get(int(position), int(position) % 10 + 1)
            logits[0, row, token] = self.sure.get(int(position), 20.0)
        return logits, inputs["kv_cache"] * inputs["keep_mask"][:, None] + inputs["insert_matrix"].sum()

    def kinds(self) -> list[str]:
        return ["commit" if inputs["insert_matrix"].any() else "iteration" for inputs in self.seen]


def test_phases_are_prefill_iterations_commit_and_advance() -> None:
    forward = Scripted()
    loop = BlockLoop(EXPORT, forward)
    assert loop.generate([1, 2, 3, 4, 5], LoopOptions(longest=4)) == [6, 7, 8, 9]
    # One whole block of the prompt, then the one with its last token; the answer's last block needs no commit.
    assert forward.kinds() == ["commit", "iteration", "commit", "iteration"]
    assert loop.steps == [StepKind.COMMIT, StepKind.ITERATION, StepKind.COMMIT, StepKind.ITERATION]
    first, second = forward.seen[1]["input_ids"][0].tolist(), forward.seen[2]["input_ids"][0].tolist()
    assert first == [5, 11, 11, 11]
    assert second == [5, 6, 7, 8]


def test_surer_tokens_are_kept_first_and_one_in_every_step() -> None:
    forward = Scripted(sure=[1.0, 20.0, 2.0, 20.0])
    loop = BlockLoop(EXPORT, forward)
    assert loop.generate([], LoopOptions(longest=4, confidence=0.9)) == [1, 2, 3, 4]
    told = [inputs["input_ids"][0].tolist() for inputs in forward.seen]
    assert told == [[11, 11, 11, 11], [11, 2, 11, 4], [11, 2, 3, 4]]


@pytest.mark.parametrize(("confidence", "steps"), [(0.0, 1), (0.9, 4)])
def test_the_threshold_decides_how_many_steps_a_block_takes(confidence: float, steps: int) -> None:
    loop = BlockLoop(EXPORT, Scripted(sure=[1.0, 1.1, 1.2, 1.3]))
    loop.generate([], LoopOptions(longest=4, confidence=confidence))
    assert len(loop.steps) == steps


def test_an_end_token_ends_the_answer_inside_a_block() -> None:
    forward = Scripted()
    forward.says = {5: 0}
    assert BlockLoop(EXPORT, forward).generate([], LoopOptions(longest=12)) == [1, 2, 3, 4, 5, 0]


def test_the_mask_token_is_never_said() -> None:
    forward = Scripted()
    forward.says = dict.fromkeys(range(16), 11)
    assert 11 not in BlockLoop(EXPORT, forward).generate([], LoopOptions(longest=4))


def test_the_answer_ends_where_no_block_is_left_in_the_cache() -> None:
    assert len(BlockLoop(EXPORT, Scripted()).generate([1, 2], LoopOptions(longest=99))) == 14


def test_a_mask_token_in_the_prompt_is_a_token_like_others() -> None:
    forward = Scripted()
    assert BlockLoop(EXPORT, forward).generate([11], LoopOptions(longest=3)) == [2, 3, 4]
    assert len(forward.seen) == 1


def test_graphs_with_masks_for_every_layer_get_them() -> None:
    forward = Scripted()
    BlockLoop(msgspec.structs.replace(EXPORT, mask_layers=3), forward).run([1, 2, 3, 4], StepKind.ITERATION)
    assert {name: forward.seen[0][name].shape[0] for name in ("attention_mask", "insert_matrix", "keep_mask")} == {
        "attention_mask": 3,
        "insert_matrix": 3,
        "keep_mask": 3,
    }


def test_a_loop_needs_a_mask_token_and_a_batch_of_one() -> None:
    with pytest.raises(ValueError, match="no mask token"):
        BlockLoop(msgspec.structs.replace(EXPORT, mask_token=None), Scripted())
    with pytest.raises(ValueError, match="the graph takes 2"):
        BlockLoop(msgspec.structs.replace(EXPORT, batch=2), Scripted())
