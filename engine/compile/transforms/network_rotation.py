"""The rotations of a network: R1 turns the residual stream, R2 the values of every head (names as in SpinQuant).

The scale of each norm is multiplied into the matrices that read behind it, for a norm without scale commutes with R1.
"""

from collections.abc import Iterator

from engine.compile.transforms.edits import Edits, LinearEdit, NormEdit
from engine.compile.transforms.rotation import Rotation
from engine.models.network import Network


def rotation_edits(network: Network, seed: int, stream: bool = True) -> Edits:
    """What both rotations do to each tensor. stream: whether R1 is among them, which needs a head that turns back."""
    if not stream:
        return Edits({}, dict(_values(network, seed)))
    turn = Rotation.seeded(network.spec.hidden, (seed, 0))
    values = dict(_values(network, seed))
    linears = dict(_stream(network, turn, values))
    return Edits({norm: NormEdit() for norm in _norms(network)}, linears)


def readers(network: Network, layer: int) -> tuple[str, ...]:
    """Modules that read behind the first norm of a layer."""
    details = network.details
    if layer in network.spec.attention_layers:
        return details.names.qkv
    names = details.recurrent_names
    return (*names.qkv_gate, names.beta, names.decay)


def value_module(network: Network) -> tuple[str, int]:
    """The module that gives the values, and its first output that is one."""
    qkv = network.details.names.qkv
    return qkv[-1], 0 if len(qkv) == 3 else network.query_width + network.key_width


def _norms(network: Network) -> Iterator[str]:
    names = network.details.names
    for layer in range(network.spec.layers):
        yield names.attention_norm.format(layer=layer)
        yield names.ffn_norm.format(layer=layer)
    yield names.final_norm


def _values(network: Network, seed: int) -> Iterator[tuple[str, LinearEdit]]:
    """R2, another in each layer. A gate multiplies the numbers of a head one by one and does not commute with it."""
    if network.details.has_output_gate:
        return
    module, first = value_module(network)
    for layer in network.spec.attention_layers:
        turn = Rotation.seeded(network.spec.head_dim, (seed, 1, layer))
        yield module.format(layer=layer), LinearEdit(output_rotation=turn, first_output=first)
        yield network.details.names.output.format(layer=layer), LinearEdit(input_rotation=turn)


def _stream(network: Network, turn: Rotation, values: dict[str, LinearEdit]) -> Iterator[tuple[str, LinearEdit]]:
    """R1 on every module of the stream, together with what R2 does to it."""
    names, spec, recurrent = network.details.names, network.spec, network.details.recurrent_names
    yield names.embedding, LinearEdit(input_rotation=turn)
    for layer in range(spec.layers):
        behind = [(readers(network, layer), names.attention_norm), (names.gate_up, names.ffn_norm)]
        for modules, norm in behind:
            for module in (name.format(layer=layer) for name in modules):
                value = values.get(module, LinearEdit())
                yield (
                    module,
                    LinearEdit(
                        norm=norm.format(layer=layer),
                        input_rotation=turn,
                        output_rotation=value.output_rotation,
                        first_output=value.first_output,
                    ),
                )
        mixed = names.output if layer in spec.attention_layers else recurrent.output
        for module in (name.format(layer=layer) for name in (mixed, names.down)):
            heads = values.get(module, LinearEdit())
            yield module, LinearEdit(input_rotation=heads.input_rotation, output_rotation=turn)
    head = LinearEdit(source=names.embedding if spec.tied_head else "", norm=names.final_norm, input_rotation=turn)
    yield names.head, head
