"""`python -m engine.runtime.qnn.probe FOLDER SOC ARCH`: try the providers step by step, for `hexserve doctor`.
FOLDER holds small.onnx and x.npy; y_*.npy and the binary are written there. One JSON line for each finished step, so
that a crash shows which step it was in."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from engine.runtime.onnx_library import ort
from engine.runtime.qnn.provider import HtpTarget, compile_options, open_session, qnn_devices, run_options

STEPS = ("CPU provider", "QNN provider", "compile", "load", "run")


class ProbeStep(msgspec.Struct, frozen=True):
    """A finished step and what there is to say about it."""

    step: str
    ok: bool
    text: str


def main(argv: Sequence[str]) -> int:
    """0 when every step went well; the first failure ends it."""
    folder, target = Path(argv[0]), HtpTarget(int(argv[1]), int(argv[2]))
    wrapper = folder / "small_ctx.onnx"
    sessions: list[ort.InferenceSession] = []

    def plain() -> str:
        session = ort.InferenceSession(str(folder / "small.onnx"), providers=["CPUExecutionProvider"])
        return f"onnxruntime {ort.__version__}, {_run(session, folder, 'y_cpu.npy')}"

    def compiled() -> str:
        config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(wrapper)}
        open_session(folder / "small.onnx", compile_options(target), config)
        return ", ".join(f"{path.name} {path.stat().st_size} bytes" for path in sorted(folder.glob("*.bin")))

    def loaded() -> str:
        sessions.append(open_session(wrapper, run_options(target), {}))
        return f"soc_model {target.soc_model}, Hexagon v{target.htp_arch}"

    def ran() -> str:
        return _run(sessions[0], folder, "y_qnn.npy")

    actions: tuple[Callable[[], str], ...] = (plain, _devices, compiled, loaded, ran)
    for step, action in zip(STEPS, actions, strict=True):
        try:
            done = ProbeStep(step, True, action())
        except Exception as error:  # noqa: BLE001 (onnxruntime's exceptions share no base class of their own)
            done = ProbeStep(step, False, str(error)[:1000])
        print("\n" + msgspec.json.encode(done).decode(), flush=True)
        if not done.ok:
            return 1
    return 0


def _devices() -> str:
    found = ((each.ep_name, dict(each.ep_metadata).get("version", ""), each.device) for each in qnn_devices())
    return "; ".join(f"{name} {version} on {device.type.name} of {device.vendor}" for name, version, device in found)


def _run(session: ort.InferenceSession, folder: Path, name: str) -> str:
    x = np.load(folder / "x.npy")
    session.run(None, {"x": x})
    start = time.perf_counter()
    (y,) = session.run(None, {"x": x})
    taken = time.perf_counter() - start
    np.save(folder / name, y)
    return f"{1000 * taken:.2f} ms"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
