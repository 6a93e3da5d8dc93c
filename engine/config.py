"""Frozen engine settings: what the worker is told on its command line, as one JSON object."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from annotated_types import Ge, Interval, MinLen

BLOCK_SIZE = 16
KV_FILE_MB = 1024  # a file holds that much, or as much as the memory of `kv_offload_mb`
KV_SAVE_MB_PER_S = 50.0  # slower disks lose what is not written in time

LogLevel = Literal["debug", "info", "warning", "error"]
SAVER: Literal["saver"] = "saver"
Power = Literal["normal", "saver"]
CPU_DEVICE = "CPU"  # as a worker tells it; others have other names


class Trait(Enum):
    """What else holds for a text setting."""

    REPEATABLE = "a list with commas, of which a flag may be given for each part"
    SECRET = "never a flag: command lines are seen by everyone on the machine"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the worker runs one bundle. A field with a sentence is a setting of the server."""

    bundle: Annotated[str, MinLen(1), "A bundle, a Hugging Face folder, a GGUF file or a name such as demo."]
    threads: Annotated[int, Interval(ge=0, le=1024), "Threads of the CPU; 0 = as measured, or its default."] = 0
    power: Annotated[Power, "saver, for a battery: half of the cores, no spinning threads, of two devices the NPU."] = (
        "normal"
    )
    spin: str = "auto"  # whether the CPU provider's threads wait without sleeping: auto (of large weights), on or off
    max_rows: int = 256  # most of a free-shape step
    max_context: Annotated[int, Ge(0), "Most tokens of a prompt with its answer; 0 = the bundle's."] = 0
    max_running: Annotated[int, Ge(1), "Most sequences that run at once; the others wait."] = 256
    kv_slots: Annotated[
        int, Interval(ge=0, le=1 << 24), "Tokens of all sequences in the KV cache; 0 = the bundle's."
    ] = 0
    reserve_tokens: int = 128  # first guess of an answer's length, for which a pool keeps KV slots free, 0 = none
    max_gap_ms: Annotated[float, Ge(1), "Longest gap in a stream that others' prompts may cause."] = 200.0
    embed_rows: int = 16  # most rows that texts to embed or to score take while something generates, beside padding
    prefix_cache: Annotated[bool, "Reuse equal prompt beginnings."] = True
    kv_offload_mb: Annotated[int, Ge(0), "MiB that prompts which may come again take; 0 = none."] = 1024
    kv_file: Annotated[
        str, "File that keeps cached prompts over a restart, up to 1024 MiB or a larger kv_offload_mb."
    ] = ""
    window: Annotated[int, Ge(0), "Attention sees this many last tokens and the first four; 0 = all."] = 0
    sinks: int = 0  # first tokens that attention sees beside its window
    deterministic: Annotated[bool, "One variant for all steps: answers do not depend on the load."] = False
    lookup_rows: Annotated[
        int,
        Interval(ge=-1, le=64),
        "Most prompt-lookup guesses of a sequence in a step; 0 = off, -1 = 4 if the model can take back a wrong one "
        "and does not guess itself.",
    ] = -1
    prediction_rows: int = 16  # most guesses in a step from a request's own prediction, as lookup_rows
    draft: Annotated[str, "Smaller model, with the same tokenizer, that guesses."] = ""
    draft_tokens: int = 0  # most that a draft proposes for a sequence and step, 0 = as many as pay
    devices: Annotated[
        str,
        "npu, cpu, npu,cpu = both together, auto = both if there is an NPU, or another bundle of the model; NAME=... "
        "for each of several models. Empty = as compiled.",
    ] = ""
    devices_optional: bool = False  # one device serves alone where the other bundle cannot be
    forecast: bool = True  # a model with a forecast prefix guesses its own next tokens in rows that would be padding
    step_timeout_s: Annotated[
        float,
        Interval(ge=0, le=86400),
        "A worker that is silent this long, or in one step this long and 20 times its expected time, is replaced; at "
        "least 1, 0 = never.",
    ] = 30.0
    log_level: Annotated[LogLevel, "Least severe message written."] = "info"
    cost_cache: str = ""  # folder of step times, "" = none
    lora: Annotated[
        str, "Adapters in PEFT's form, NAME=FOLDER,...: a request names one as its model.", Trait.REPEATABLE
    ] = ""
    qnn_options: Annotated[
        str,
        "Options of the NPU's provider, key=value,...; also op_packages=type:path:interface[:target];... and "
        "libraries=FOLDER (another QNN).",
    ] = ""

    @property
    def kv_file_mb(self) -> int:
        """Most MiB that `kv_file` takes."""
        return max(KV_FILE_MB, self.kv_offload_mb)

    @property
    def save_s(self) -> float:
        """How long a worker may take at its end to write its `kv_file`; 0 without one."""
        return 5.0 + self.kv_file_mb / KV_SAVE_MB_PER_S if self.kv_file else 0.0
