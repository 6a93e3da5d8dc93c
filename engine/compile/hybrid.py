"""What a model with recurrent layers can be compiled to. Pure."""

from engine.compile.arguments import CompileArguments, Layout
from engine.compile.layout import HEAD_STEP, layout_of
from engine.errors import CompileError
from engine.models.network import Network


def settle_hybrid(arguments: CompileArguments, network: Network) -> CompileArguments:
    """The arguments, if recurrent layers can do with them. CompileError names the option that they cannot.

    A state is one sequence's: pools, where rows see any columns, have no place for it, and NPU graphs are of pools.
    """
    if network.spec.recurrent is None:
        return arguments
    family = network.spec.family
    if arguments.is_npu:
        raise CompileError(f"--target {arguments.target}: recurrent layers ({family}) run on the CPU only")
    if network.spec.head_dim % HEAD_STEP:
        raise CompileError(f"recurrent layers ({family}) need a head size that {HEAD_STEP} divides")
    if arguments.lora:
        raise CompileError(f"--lora is refused: adapters of recurrent layers ({family}) are not implemented")
    if layout_of(arguments) is not Layout.SEGMENTS:
        raise CompileError(
            f"recurrent layers ({family}) need --layout segments, with free shapes, no --split and a --quant of float "
            "activations: their state belongs to one sequence, and a pool has none"
        )
    return arguments
