"""A graph bound to fixed buffers, so that a pass allocates nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.bundle.encoding import Array
from engine.graphs.onnx_library import ort


@dataclass(slots=True)
class Binding:
    """A session and its bound buffers, which `held` keeps alive."""

    session: ort.InferenceSession
    binding: ort.IOBinding
    held: list[Array]

    def run(self) -> None:
        """Run the graph over its buffers; raises what onnxruntime raises."""
        self.session.run_with_iobinding(self.binding)


def bind(bound: Binding, bind_one: object, name: str, array: Array) -> None:
    """Bind one tensor; `bind_one` is bind_input or bind_output of the binding."""
    assert callable(bind_one)
    assert array.flags.c_contiguous, f"{name} is not contiguous"
    bind_one(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    bound.held.append(array)


def bind_all(session: ort.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Binding:
    """A session bound to these buffers, by the names of its tensors."""
    bound = Binding(session, session.io_binding(), [])
    for name, array in inputs.items():
        bind(bound, bound.binding.bind_input, name, array)
    for name, array in outputs.items():
        bind(bound, bound.binding.bind_output, name, array)
    return bound
