"""How near an NPU bundle is to the float model, on text, where this machine can tell in reasonable time."""

import msgspec

from engine.compile.baseline import baseline_figures
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.npu.targets import NPU_TARGETS
from engine.compile.parity import bundle_logits, compare_logits
from engine.compile.stages import float_logits, held_out_texts, parity_figures
from engine.graphs.onnx_qnn import EMULATOR, device_name, is_device, open_session, run_options

# The emulator takes about 0.1 s for a row of a 5-million-parameter model; the CPU runs the same graphs much faster.
EMULATED_PARAMETERS = 20_000_000
EMULATED_PASSES = 24
CPU_PARAMETERS = 2_000_000_000
ON_CPU = "CPU, same graphs before they became binaries"
NOT_MEASURED = "not measured: too large for this machine"


def measure_quality(work: Compilation) -> None:
    """Fill in `parity` and where it was measured. CompileError when a graph gives no numbers."""
    assert work.npu is not None
    way = choose_way(work.network.spec.parameters, bool(work.npu.shared), is_device())
    work.npu = msgspec.structs.replace(work.npu, parity_on=way)
    if way == NOT_MEASURED:
        return
    draft = describe(work)
    count = work.arguments.parity_tokens
    if way == EMULATOR:
        count = min(count, EMULATED_PASSES * max(shape.rows for shape in work.shapes))
    texts = held_out_texts(work, count)
    expected = float_logits(work, texts)
    if way == ON_CPU:
        found = bundle_logits(work.graph_folder, msgspec.structs.replace(draft, graphs=work.onnx_graphs), texts)
    else:
        options = run_options(NPU_TARGETS[work.arguments.target], extra="")
        found = bundle_logits(work.folder, draft, texts, lambda path: open_session(path, options, {}))
    work.progress.advance(len(expected))
    work.parity = parity_figures(work, compare_logits(expected, found))
    work.parity |= baseline_figures(work, texts, expected)


def choose_way(parameters: int, shared: bool, device: bool) -> str:
    """Where to measure: the device, the emulator (never with shared binaries: they kill it), the CPU, or nowhere."""
    if device or (parameters <= EMULATED_PARAMETERS and not shared):
        return device_name()
    return ON_CPU if parameters <= CPU_PARAMETERS else NOT_MEASURED
