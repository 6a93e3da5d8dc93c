"""One stream on the NPU and on the CPU of the same laptop, with published rates: QAIRT and llama.cpp's Q4_0 on X Elite.

Rates are tokens a second at a context of so many KV slots.
"""

from dataclasses import dataclass

from tools.simulate.published import ROWS, HubFigures, HubSpeed


@dataclass(frozen=True, slots=True)
class LoneRates:
    """decode and prefill in tokens a second."""

    decode: float
    prefill: float

    def seconds(self, prompt: int, output: int) -> float:
        """From the request to the last token of its answer; the first one comes with the prompt's last step."""
        return prompt / self.prefill + (output - 1) / self.decode


@dataclass(frozen=True, slots=True)
class Processors:
    """One model in one context on both."""

    model: str
    context: int
    npu: LoneRates
    cpu: LoneRates

    def break_even(self, prompt: int) -> float | None:
        """Tokens of the answer from which the CPU is faster altogether; None if it never is."""
        lead_s = prompt / self.cpu.prefill - prompt / self.npu.prefill
        gain_s = 1.0 / self.npu.decode - 1.0 / self.cpu.decode
        return 1.0 + lead_s / gain_s if gain_s > 0 else None


def both_processors(figures: HubFigures) -> tuple[Processors, ...]:
    """Every model and context that the laptop's NPU and CPU both have a rate for, by GenieX."""
    found: dict[tuple[str, int], dict[str, HubSpeed]] = {}
    for speed in figures.speeds:
        if speed.device == "x-elite" and speed.runtime != "genie":
            found.setdefault((speed.model, speed.context), {})[speed.processor] = speed
    return tuple(
        Processors(model, context, _rates(kept["npu"]), _rates(kept["cpu"]))
        for (model, context), kept in sorted(found.items())
        if len(kept) == 2
    )


def _rates(speed: HubSpeed) -> LoneRates:
    return LoneRates(speed.decode_per_s, 1000.0 * ROWS / speed.first_token_ms)
