"""One sample as training rows: its clean tokens once, and several copies of its answers' blocks with tokens masked."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from tools.demo_model.network import END_OF_TEXT
from tools.demo_model.train import Batch

BLOCK = 4  # tokens that are denoised together
COPIES = 3
CLEAN = 0  # the copy that is never masked
PADDING = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One token at its position. copy: 0 = clean. target: what a masked row should say, None = nothing is learned."""

    token: int
    position: int
    copy: int
    target: int | None = None


def training_rows(rng: Random, tokens: Sequence[int], learned: Sequence[bool], mask: int) -> list[Row]:
    """The rows of one sample. learned: for each token whether the model produces it; the others are never masked."""
    blocks = [start for start in range(0, len(tokens), BLOCK) if any(learned[start : start + BLOCK])]
    rows = [Row(token, position, CLEAN) for position, token in enumerate(tokens[: blocks[-1]])]
    for copy in range(1, COPIES + 1):
        for start in blocks:
            rows.extend(_noisy_block(rng, tokens, learned, start, copy, mask))
    return rows


def _noisy_block(
    rng: Random, tokens: Sequence[int], learned: Sequence[bool], start: int, copy: int, mask: int
) -> list[Row]:
    """One block in one copy. The first copy masks all it may: the state in which a block is first denoised."""
    content: list[tuple[int, bool]] = []
    has_begun = False
    for position in range(start, start + BLOCK):
        if position < len(tokens) and learned[position]:
            has_begun = True
            content.append((tokens[position], True))
        elif has_begun:  # nothing of what follows an answer is known while it is written
            content.append((END_OF_TEXT, True))
        else:
            content.append((tokens[position], False))
    places = [place for place, (_, may_be_masked) in enumerate(content) if may_be_masked]
    count = len(places) if copy == 1 else rng.randint(1, len(places))
    masked = set(rng.sample(places, count))
    return [
        Row(mask, start + place, copy, token) if place in masked else Row(token, start + place, copy)
        for place, (token, _) in enumerate(content)
    ]


def batch_of(samples: Sequence[Sequence[Row]]) -> Batch:
    """Samples padded to one width, with what each row sees."""
    width = max(map(len, samples))
    chosen: list[int] = []
    targets: list[int] = []
    for index, rows in enumerate(samples):
        for place, row in enumerate(rows):
            if row.target is not None:
                chosen.append(index * width + place)
                targets.append(row.target)
    positions = _padded([[row.position for row in rows] for rows in samples], width, 0)
    copies = _padded([[row.copy for row in rows] for rows in samples], width, PADDING)
    return Batch(
        tokens=_padded([[row.token for row in rows] for rows in samples], width, END_OF_TEXT),
        chosen=torch.tensor(chosen),
        targets=torch.tensor(targets),
        positions=positions,
        visible=visibility(positions, copies),
    )


def visibility(positions: Tensor, copies: Tensor) -> Tensor:
    """[batch, 1, rows, rows]: a row sees its own block of its own copy, both ways, and the clean blocks before it.

    positions, copies: [batch, rows]. Padding sees padding alone, so that no row sees nothing.
    """
    blocks = positions // BLOCK
    row_block, column_block = blocks.unsqueeze(2), blocks.unsqueeze(1)
    row_copy, column_copy = copies.unsqueeze(2), copies.unsqueeze(1)
    own = (row_copy == column_copy) & (row_block == column_block)
    before = (row_copy != PADDING) & (column_copy == CLEAN) & (column_block < row_block)
    return (own | before).unsqueeze(1)


def _padded(lines: list[list[int]], width: int, filler: int) -> Tensor:
    return torch.tensor([line + [filler] * (width - len(line)) for line in lines])
