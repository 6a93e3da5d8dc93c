"""Which of several devices reads a prompt, and which writes the next tokens. Pure: costs and loads in, a number out.

A device's steps cost what its worker measured at its start. A prompt goes where it is read first. A stream goes where
it costs everybody least: where it is added, all streams of a step wait for the longer step. It stays where it is unless
the other device is clearly better for long enough to pay for the way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.config import CPU_DEVICE

CLEARLY = 1.15  # how many times better another device must be before a stream moves
MOVE_MS = 5.0  # of a stream's way to another device, beside what each of its tokens takes
MOVE_TOKEN_MS = 0.05  # until it has been measured
USUAL_ANSWER = 128  # tokens that are still to come, where nothing better is known


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """steps: rows, past columns and milliseconds of measured steps, at least one. is_free: whether what lies
    between them costs what lies between; else a step takes the next larger shape."""

    steps: tuple[tuple[int, int, float], ...]
    is_free: bool

    def step_ms(self, rows: int, context: int) -> float:
        """Expected milliseconds of a step of `rows` rows over `context` columns."""
        pasts = sorted({columns for _, columns, _ in self.steps})
        if self.is_free:
            return float(np.interp(context, pasts, [self._at_rows(rows, past) for past in pasts]))
        return self._at_rows(rows, next((past for past in pasts if past >= context), pasts[-1]))

    def _at_rows(self, rows: int, past: int) -> float:
        line = sorted((at, ms) for at, columns, ms in self.steps if columns == past)
        counts, times = [at for at, _ in line], [ms for _, ms in line]
        if rows > counts[-1]:  # several steps, or a longer one: what a row costs where rows are cheapest
            return times[-1] * rows / counts[-1]
        if self.is_free:
            return float(np.interp(rows, counts, times))
        return min(ms for at, ms in line if at >= rows)

    def prompt_ms(self, tokens: int) -> float:
        """Expected milliseconds to read a prompt in steps of its own."""
        if tokens <= 0:
            return 0.0
        return min(self._in_chunks(tokens, rows) for rows, _, _ in self.steps)

    def _in_chunks(self, tokens: int, rows: int) -> float:
        whole, rest = divmod(tokens, rows)
        first = whole * self.step_ms(rows, tokens // 2)
        return first + (self.step_ms(rest, tokens) if rest else 0.0)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What a device has to do. streams: sequences that get tokens; context: cached tokens of one of them, on average.

    unread: tokens of prompts that are still to be read.
    """

    costs: DeviceCosts
    streams: int = 0
    context: int = 0
    unread: int = 0

    def added_ms(self, context: int) -> float:
        """By how much a round of tokens of all streams gets longer with one more of them, times those who wait."""
        return self._round_ms(self.streams + 1, context) - self._round_ms(self.streams, self.context)

    def saved_ms(self, context: int) -> float:
        """The same with one stream less."""
        return self._round_ms(self.streams, context) - self._round_ms(self.streams - 1, self.context)

    def _round_ms(self, streams: int, context: int) -> float:
        if streams <= 0:
            return 0.0
        busy = self.costs.prompt_ms(self.unread) / USUAL_ANSWER  # prompts are read between the tokens of streams
        return streams * (self.costs.step_ms(streams, context) + busy)


def candidates(serving: Sequence[int], names: Sequence[str], saves_power: bool) -> list[int]:
    """Of the devices that serve those that may get a stream: to save power none but the CPU is left out.

    names: of all devices, as their workers tell them.
    """
    others = [index for index in serving if names[index] != CPU_DEVICE]
    return others if saves_power and others else list(serving)


def reader(prompt: int, loads: Sequence[DeviceLoad]) -> int:
    """The device that has read a new prompt first."""
    waits = [load.costs.prompt_ms(load.unread + prompt) + _decoding_ms(load) for load in loads]
    return waits.index(min(waits))


def writer(here: int, context: int, left: int, loads: Sequence[DeviceLoad], token_ms: float = MOVE_TOKEN_MS) -> int:
    """The device for the next tokens of a stream that is at `here`, counted among its streams.

    context: its cached tokens. left: most tokens that are still to come. token_ms: what the way takes for each of its
    tokens.
    """
    saved = loads[here].saved_ms(context)
    added = [load.added_ms(context) if index != here else saved for index, load in enumerate(loads)]
    there = added.index(min(added))
    gain = (saved - CLEARLY * added[there]) * min(left, USUAL_ANSWER)
    return there if there != here and gain > MOVE_MS + token_ms * context else here


def _decoding_ms(load: DeviceLoad) -> float:
    """What the first step waits for: one round of the streams that are there."""
    return load.costs.step_ms(load.streams, load.context) if load.streams else 0.0
