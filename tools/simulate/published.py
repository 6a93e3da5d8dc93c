"""Step times that AI Hub published for devices, and the rule for the shapes between them.

A first token of a short prompt is one step of 128 rows; one over the decode rate is a step of one row.
ai_hub.json has what the wheel qai-hub-models tells of both; `tools.simulate.wheel` writes it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from engine.bundle.variant import StepShape
from engine.sources.ai_hub import RUNTIMES, first_line, hub_module, unreachable, user_error
from engine.sources.names import FetchFailed

DATA = Path(__file__).parent / "ai_hub.json"
HUB = "hub:"
ROWS = 128  # of the step that gives a short prompt's first token
# Devices here, and the chips of AI Hub whose reference devices it measured.
HUB_CHIPS = {
    "x-elite": "qualcomm-snapdragon-x-elite",
    "x2-elite": "qualcomm-snapdragon-x2-elite",
    "8-elite": "qualcomm-snapdragon-8-elite-for-galaxy",
    "8-elite-gen5": "qualcomm-snapdragon-8-elite-gen5-for-galaxy",
}


class HubSpeed(msgspec.Struct, frozen=True, array_like=True):
    """One line of a perf.yaml. processor: npu or cpu."""

    model: str
    device: str
    processor: str
    runtime: str
    precision: str
    context: int
    first_token_ms: float
    decode_per_s: float


class HubFigures(msgspec.Struct, frozen=True):
    """What one release of the package publishes. kv_bytes: keys and values of a token, by model."""

    package: str
    version: str
    kv_bytes: dict[str, int]
    speeds: tuple[HubSpeed, ...]

    @property
    def source(self) -> str:
        """In words."""
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Published:
    """One model on one device: a step of 128 rows took `rows_ms`, and decoding gave `decode_per_s` tokens."""

    model: str
    device: str
    rows_ms: float
    decode_per_s: float
    context: int
    kv_bytes: int
    source: str

    @property
    def one_row_ms(self) -> float:
        """A step of one row."""
        return 1000.0 / self.decode_per_s


@cache
def hub_figures() -> HubFigures:
    """Those of ai_hub.json."""
    return msgspec.json.decode(DATA.read_bytes(), type=HubFigures)


def published_speeds(name: str, chipset: str) -> tuple[HubSpeed, ...]:
    """Of a model on the NPU of all devices with this chip, every runtime and precision. FetchFailed."""
    perf, platform, enums = (hub_module(f"proto_helpers.{part}") for part in ("perf", "platform", "platform_enums"))
    expected = user_error()
    try:
        records = perf.filter_perf(perf.get_model_perf(name), platform.get_platform(), chipset=chipset)
    except expected as error:
        raise FetchFailed(f"AI Hub has published no speeds of {name}: {first_line(error)}") from error
    except OSError as error:
        raise unreachable(error) from error
    return tuple(_speeds(name, records.performance_metrics, enums))


def _speeds(name: str, records: Iterable[Any], enums: ModuleType) -> Iterable[HubSpeed]:
    for record in records:
        for speed in record.llm_metrics:
            if (speed.desired_compute_unit or "npu").lower() != "npu":
                continue
            said = enums.runtime_proto_to_str(record.runtime), enums.precision_proto_to_str(record.precision)
            first = speed.time_to_first_token_range_milliseconds.min
            figures = speed.context_length, first, speed.tokens_per_second
            yield HubSpeed(name, record.device, "npu", *said, *figures)


def ask_hub(
    model: str, device: str, kv_bytes: int, ask: Callable[[str, str], Sequence[HubSpeed]] = published_speeds
) -> Published:
    """What AI Hub publishes today of `hub:MODEL`, at its widest context. ValueError where that is nothing.

    kv_bytes: keys and values of a token, which are not published.
    """
    try:
        found = ask(model.removeprefix(HUB), HUB_CHIPS.get(device, device))
    except FetchFailed as error:
        raise ValueError(str(error)) from error
    served = [speed for speed in found if speed.runtime in RUNTIMES and speed.first_token_ms and speed.decode_per_s]
    if not served:
        raise ValueError(f"AI Hub has published no speeds of {model} on {device}")
    best = max(served, key=lambda speed: (speed.context, speed.decode_per_s))
    source = f"AI Hub today ({best.runtime}, {best.precision})"
    return Published(model, device, best.first_token_ms, best.decode_per_s, best.context, kv_bytes, source)


def find(model: str, device: str) -> tuple[Published, ...]:
    """Of ai_hub.json at the widest context; model 'all' takes all of the device. ValueError says what there is.

    A rate by which one row takes longer than 128 is of the program round the graphs, and prices no step.
    """
    if device not in HUB_CHIPS:
        raise ValueError(f"--device must be one of {', '.join(HUB_CHIPS)}, not '{device}'")
    there: dict[str, HubSpeed] = {}
    figures = hub_figures()
    for speed in figures.speeds:
        prices_steps = 1000.0 / speed.decode_per_s < speed.first_token_ms
        if (speed.device, speed.processor) == (device, "npu") and prices_steps:
            best = there.setdefault(speed.model, speed)
            there[speed.model] = max(best, speed, key=lambda each: (each.context, each.decode_per_s))
    wanted = [speed for speed in there.values() if model in {"all", speed.model}]
    if not wanted:
        raise ValueError(f"--model must be 'all' or one of {', '.join(there)} on {device}, not '{model}'")
    return tuple(
        Published(
            *(speed.model, device, speed.first_token_ms, speed.decode_per_s, speed.context),
            figures.kv_bytes[speed.model],
            f"AI Hub ({figures.source}, {speed.runtime})",
        )
        for speed in wanted
    )


def price(published: Published, shapes: Iterable[StepShape]) -> dict[StepShape, float]:
    """Linear in rows between the two published points; the price of the published context for any narrower one.

    ValueError when a shape lies outside what was published.
    """
    slope = (published.rows_ms - published.one_row_ms) / (ROWS - 1)
    priced = {}
    for shape in shapes:
        if shape.rows > ROWS:
            raise ValueError(f"--rows must be at most {ROWS}, the most published, not {shape.rows}")
        if shape.context > published.context:
            raise ValueError(f"{shape} is wider than the {published.context} KV slots published")
        priced[shape] = published.one_row_ms + slope * (shape.rows - 1)
    return priced
