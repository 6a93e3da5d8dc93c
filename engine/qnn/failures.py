"""Plain sentences for the failures of Qualcomm's runtime that people have met, found by what the libraries print."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A pattern (case does not matter) in an error text, and the sentence that explains it to a user."""

    pattern: str
    meaning: str


_UPDATE = "update the Hexagon NPU driver (Windows Update, or the laptop maker's page)"

KNOWN = (
    KnownFailure(
        r"unable to load backend",
        "the QNN library that backend_path or HEXSERVE_QNN_LIBRARY_DIR names, or one that it needs, cannot be loaded",
    ),
    KnownFailure(
        r"register op package",
        "the QNN runtime refused what HEXSERVE_QNN_OP_PACKAGES names: an op package must be made for this QNN version, "
        "this chip and its target",
    ),
    KnownFailure(
        r"future blob|\b30001\b|\b5005\b",
        "the binary was made by a newer QNN than the one installed here, or for another Hexagon version: update "
        "onnxruntime-qnn, or compile for this chip",
    ),
    KnownFailure(
        r"remote_handle64_open.*0x(?:43|72)|\b0x80000406\b|transport for device",
        "the NPU driver refuses a session: it is missing, too old for this runtime, or its files are unsigned; "
        + _UPDATE,
    ),
    KnownFailure(
        r"dspqueue_read.*0x2e|dspqueue.*failed",
        "the NPU stopped answering, as models above four billion parameters can cause: use a smaller --part-mb "
        "or model",
    ),
    KnownFailure(
        r"SSR detected|NPU crashed|\b1100\b",
        "the NPU crashed and is being restarted by its driver; the worker starts again by itself. If it happens again, "
        "close other programs that use the NPU",
    ),
    KnownFailure(
        r"\b6031\b|graph execute error",
        "the NPU gave up while it ran a graph: the binary may be damaged, another program may hold the NPU, or the "
        f"driver is too old; {_UPDATE}",
    ),
    KnownFailure(
        r"\b1002\b|MEM_ALLOC|out of memory|failed to allocate",
        "there was not enough memory for the NPU: close programs, or compile with a smaller --context or --part-mb",
    ),
    KnownFailure(
        r"\b1003\b|Unsupported platform|does not support the QNN",
        "this machine is not one the QNN runtime supports; only Snapdragon chips with a Hexagon NPU are",
    ),
    KnownFailure(
        r"\b14001\b|\b14\d{3}\b.*device|Failed to create device|device creation",
        f"the NPU could not be opened; {_UPDATE}",
    ),
    KnownFailure(
        r"GLIBC_2\.|libc\.so\.6.*not found|version `GLIBC",
        "the system's C library is too old: onnxruntime-qnn needs glibc 2.35 on x86-64 and 2.34 on ARM64 "
        "(Ubuntu 22.04, Debian 12)",
    ),
    KnownFailure(
        r"ADSP_LIBRARY_PATH|skel.*(?:not found|failed)|failed to load skel",
        "the NPU cannot find its own library (the skel). Unset ADSP_LIBRARY_PATH so that the one in the "
        "onnxruntime-qnn package is used",
    ),
    KnownFailure(
        r"fastrpc|/dev/.*(?:dsp|rpc).*(?:denied|no such)",
        "the fastrpc device nodes cannot be opened: add the user to the group that owns /dev/fastrpc-*, and give them "
        "to the container (see docs/npu.md)",
    ),
    KnownFailure(
        r"not compatible with any execution provider",
        "no provider took the graph: the binary's wrapper is not one of onnxruntime-qnn, or the provider is not loaded",
    ),
    KnownFailure(
        r"fallback to CPU EP has been explicitly disabled",
        "a part of the graph has no place on the NPU, and nothing runs on the CPU silently here",
    ),
    KnownFailure(
        r"tensor data size does not match",
        "a tensor of the binary has another size than its wrapper says: compile the bundle again",
    ),
    KnownFailure(
        r"No module named 'onnxruntime_qnn'|hexserve\[qnn\]",
        "Qualcomm's runtime is not installed: pip install 'hexserve[qnn]'",
    ),
)


def explain(text: str) -> str:
    """The sentence for a known failure, '' for an unknown one."""
    for known in KNOWN:
        if re.search(known.pattern, text, re.IGNORECASE | re.DOTALL):
            return known.meaning
    return ""
