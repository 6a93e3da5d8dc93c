"""The low-rank paths of adapters beside the linear layers: tensors that are inputs of the graph, not weights of it."""

import math
from dataclasses import dataclass

from engine.bundle.lora import STARTING, LoraModule
from engine.bundle.lora_tensors import FLOAT, MASK, A, B, ranks_axis
from engine.compile.graph_builder import CONTRIB, GraphBuilder
from engine.models.network import Network

QKV, OUTPUT, GATE_UP, DOWN = STARTING, "output", "gate_up", "down"


@dataclass(frozen=True, slots=True)
class LoraPaths:
    """Writes the paths of one graph. rows: the name of its axis of rows."""

    graph: GraphBuilder
    modules: tuple[LoraModule, ...]
    rows: str

    def add(self, x: str, product: str, linear: str) -> str:
        """x [1, N, inputs], product [1, N, outputs] -> the product and what the adapters of each row add to it."""
        paths = [self._path(x, module) for module in self.modules if module.linear == linear]
        if not paths:
            return product
        added = paths[0] if len(paths) == 1 else self.graph.op("Concat", paths, axis=-1)
        return self.graph.op("Add", [product, added])

    def _path(self, x: str, module: LoraModule) -> str:
        graph, ranks = self.graph, ranks_axis(module)
        a = graph.add_input(A + module.name, FLOAT, ranks, module.inputs)
        b = graph.add_input(B + module.name, FLOAT, ranks, module.outputs)
        mask = graph.add_input(MASK + module.name, FLOAT, 1, self.rows, ranks)
        narrow = graph.op("FusedMatMul", [x, a], domain=CONTRIB, transB=1)
        return graph.op("MatMul", [graph.op("Mul", [narrow, mask]), b])


def lora_modules(network: Network) -> tuple[LoraModule, ...]:
    """Every matrix of the layers, in the order in which the linear layers stack them."""
    names, spec, details = network.details.names, network.spec, network.details
    query, key = network.query_width, network.key_width
    scaled = 0 if details.has_qk_norm else query  # where the query matrix carries the scale of attention
    found = _stacked(names.qkv, QKV, spec.hidden, (query, key, key))
    first = found[0]
    if scaled:
        found[0] = LoraModule(
            first.path, first.linear, first.inputs, first.outputs, scaled, 1.0 / math.sqrt(spec.head_dim)
        )
    found += _stacked((names.output,), OUTPUT, query, (spec.hidden,))
    found += _stacked(names.gate_up, GATE_UP, spec.hidden, (spec.ffn, spec.ffn))
    found += _stacked((names.down,), DOWN, spec.ffn, (spec.hidden,))
    return tuple(found)


def _stacked(paths: tuple[str, ...], linear: str, inputs: int, outputs: tuple[int, ...]) -> list[LoraModule]:
    """A family that stores its matrices stacked already has one path for all outputs."""
    widths = outputs if len(paths) == len(outputs) else (sum(outputs),)
    return [LoraModule(path, linear, inputs, width) for path, width in zip(paths, widths, strict=True)]
