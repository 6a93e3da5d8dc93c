"""One stream on the NPU and on the CPU of the same laptop, with published rates.

AI Hub: perf.yaml of qai-hub-models 0.65.0, rows of the X Elite CRD: QAIRT (w4a16) on the NPU, llama.cpp's GGUF (Q4_0)
on the CPU. Rates are tokens a second in a context of so many columns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoneRates:
    """decode and prefill in tokens a second."""

    decode: float
    prefill: float

    def seconds(self, prompt: int, output: int) -> float:
        """From the request to the last token of its answer; the first one comes with the prompt's last pass."""
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


LONE = (
    Processors("Qwen3-0.6B", 512, LoneRates(82.8, 4933.0), LoneRates(112.4, 1237.0)),
    Processors("Qwen3-1.7B", 512, LoneRates(40.5, 2661.0), LoneRates(62.5, 404.0)),
    Processors("Qwen3-4B-2507", 512, LoneRates(20.9, 1361.0), LoneRates(28.3, 184.0)),
    Processors("Qwen3-4B-2507", 4096, LoneRates(13.1, 937.0), LoneRates(7.4, 95.0)),
)
