"""Block-diffusion decoding in plain torch, for a batch of prompts: what the shipped model is measured with.

A step denoises one block of every sequence. The block before it, once it is finished, lies in the same step and is
committed by it: its clean keys and values enter the cache, those of noisy rows never do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tools.demo_model.diffusion.rows import BLOCK
from tools.demo_model.network import END_OF_TEXT, END_OF_TURN, DemoNetwork, Layer, rotation_tables

_ENDS = (END_OF_TURN, END_OF_TEXT)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How blocks are denoised. confidence: a token surer than this is kept, and the surest one in any case.

    per_step: instead, so many of the surest tokens are kept in each step. longest: tokens of one answer.
    """

    mask: int
    longest: int
    confidence: float = 0.9
    per_step: int = 0


@dataclass(slots=True)
class DenoisedAnswer:
    """tokens: up to the end token and with it. steps: that denoised a block of it; the prefill is not one."""

    tokens: list[int] = field(default_factory=list)
    steps: int = 0


@dataclass(slots=True)
class _Sequence:
    """start: the first position of the active block. first: the first generated position."""

    block: list[int]
    start: int
    first: int
    answer: DenoisedAnswer
    finished: list[int] | None = None  # the block before, until a step has committed it
    is_done: bool = False


class BlockDecoder:
    """Answers a batch of prompts; each sequence has its own cache row [kv_heads, columns, head_dim] in every layer."""

    def __init__(self, network: DemoNetwork, decoding: Decoding) -> None:
        self._network = network
        self._decoding = decoding
        self._layers: list[Layer] = [layer for layer in network.layers if isinstance(layer, Layer)]

    @torch.inference_mode()
    def answers(self, prompts: Sequence[Sequence[int]]) -> list[DenoisedAnswer]:
        """Decode every prompt to its end token or the longest answer."""
        sequences = [self._opened(prompt) for prompt in prompts]
        self._prefill(prompts, [sequence.start for sequence in sequences])
        while not all(sequence.is_done for sequence in sequences):
            logits = self._step(sequences)
            for sequence, row in zip(sequences, logits, strict=True):
                if not sequence.is_done:
                    self._take(sequence, row)
        return [sequence.answer for sequence in sequences]

    def _opened(self, prompt: Sequence[int]) -> _Sequence:
        """What of the prompt fills no block becomes the known part of the first one."""
        start = len(prompt) // BLOCK * BLOCK
        known = list(prompt[start:])
        return _Sequence(known + [self._decoding.mask] * (BLOCK - len(known)), start, len(prompt), DenoisedAnswer())

    def _prefill(self, prompts: Sequence[Sequence[int]], starts: list[int]) -> None:
        width = max(starts)
        columns = width + -(-self._decoding.longest // BLOCK) * BLOCK + BLOCK
        shape, count = self._network.shape, len(prompts)
        size = (2, count, shape.num_key_value_heads, columns, shape.head_dim)
        self._caches = [torch.zeros(size) for _ in self._layers]
        self._filled = torch.zeros(count, columns, dtype=torch.bool)
        for index, start in enumerate(starts):
            self._filled[index, :start] = True
        if not width:
            return
        tokens = torch.zeros(count, width, dtype=torch.long)
        for index, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            tokens[index, :start] = torch.tensor(prompt[:start])
        positions = torch.arange(width)
        blocks = positions // BLOCK
        visible = (blocks.unsqueeze(0) <= blocks.unsqueeze(1)).expand(count, 1, width, width)
        hidden, rotation = self._network.embed_tokens(tokens), rotation_tables(positions, shape)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            normed = layer.input_layernorm(hidden)
            queries, keys, values = layer.self_attn.project(normed, rotation)
            cache[0, :, :, :width], cache[1, :, :, :width] = keys, values
            hidden = layer.add_ffn(hidden + layer.self_attn.mix(queries, keys, values, visible))

    def _step(self, sequences: list[_Sequence]) -> Tensor:
        """Logits [sequences, BLOCK, vocab] of the active blocks; finished blocks are committed."""
        empty = [self._decoding.mask] * BLOCK
        tokens = torch.tensor([(each.finished or empty) + each.block for each in sequences])
        starts = torch.tensor([each.start for each in sequences])
        commits = torch.tensor([each.finished is not None for each in sequences])
        positions = (starts.unsqueeze(1) + torch.arange(-BLOCK, BLOCK)).clamp(min=0)
        visible = self._visible(commits)
        hidden, rotation = self._network.embed_tokens(tokens), rotation_tables(positions, self._network.shape)
        rows = commits.nonzero().flatten()
        places = positions[rows, :BLOCK]
        for layer, cache in zip(self._layers, self._caches, strict=True):
            queries, keys, values = layer.self_attn.project(layer.input_layernorm(hidden), rotation)
            both_keys, both_values = torch.cat((cache[0], keys), dim=2), torch.cat((cache[1], values), dim=2)
            mixed = layer.self_attn.mix(queries, both_keys, both_values, visible)
            hidden = layer.add_ffn(hidden + mixed)
            for side, fresh in enumerate((keys, values)):
                cache[side][rows.unsqueeze(1), :, places] = fresh[rows, :, :BLOCK].transpose(1, 2)
        self._filled[rows.unsqueeze(1), places] = True
        for sequence in sequences:
            sequence.finished = None
        return self._network.logits(hidden[:, BLOCK:])

    def _visible(self, commits: Tensor) -> Tensor:
        """[sequences, 1, 2 * BLOCK, columns + 2 * BLOCK]: the cache, then the finished and the active block."""
        count, size = len(commits), 2 * BLOCK
        own = torch.zeros(count, size, size, dtype=torch.bool)
        own[:, :BLOCK, :BLOCK] = True
        own[:, BLOCK:, BLOCK:] = True
        own[:, BLOCK:, :BLOCK] = commits.view(-1, 1, 1)
        cached = self._filled.unsqueeze(1).expand(count, size, -1)
        return torch.cat((cached, own), dim=2).unsqueeze(1)

    def _take(self, sequence: _Sequence, logits: Tensor) -> None:
        """Keep the tokens that are sure enough; a block without masks is finished."""
        sequence.answer.steps += 1
        logits[:, self._decoding.mask] = -torch.inf
        sure, best = logits.softmax(-1).max(-1)
        places = [place for place, token in enumerate(sequence.block) if token == self._decoding.mask]
        for place in self._kept(places, sure):
            sequence.block[place] = int(best[place])
        if self._decoding.mask in sequence.block:
            return
        produced = [token for place, token in enumerate(sequence.block) if sequence.start + place >= sequence.first]
        sequence.answer.tokens += produced
        ends = [index for index, token in enumerate(sequence.answer.tokens) if token in _ENDS]
        if ends or len(sequence.answer.tokens) >= self._decoding.longest:
            last = ends[0] + 1 if ends else self._decoding.longest
            del sequence.answer.tokens[last:]
            sequence.is_done = True
        sequence.finished = sequence.block
        sequence.block = [self._decoding.mask] * BLOCK
        sequence.start += BLOCK

    def _kept(self, open_places: list[int], sure: Tensor) -> list[int]:
        by_surety = sorted(open_places, key=lambda place: -float(sure[place]))
        if self._decoding.per_step:
            return by_surety[: self._decoding.per_step]
        return by_surety[:1] + [place for place in by_surety[1:] if float(sure[place]) > self._decoding.confidence]
