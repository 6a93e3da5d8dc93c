"""From an encoder's tensors to its packed weights."""

import math
from pathlib import Path

from engine.bundle.weight_files import write_floats
from engine.compile.quantisation.linear_packer import LinearSource
from engine.compile.quantisation.packed import PackedEncoder, PackedEncoderLayer, PackedNorm
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Activation, EncoderDetails, Network


class EncoderPacker:
    """Writes an encoder's weights into one file."""

    def __init__(self, network: Network, packer: WeightPacker, checkpoint: Checkpoint) -> None:
        self._network = network
        self._packer = packer
        self._checkpoint = checkpoint

    def pack(self, details: EncoderDetails, file: WeightFile) -> PackedEncoder:
        """Everything but the score head."""
        spec = self._network.spec
        positions = None
        if details.positions is not None:
            positions = self._rows(file, "positions", details.positions, details.table_rows)
        return PackedEncoder(
            self._packer.table(file),
            self._rows(file, "token_types", details.token_types, details.spec.token_types),
            positions,
            self._norm(file, "embedding_norm", details.embedding_norm),
            tuple(self._layer(file, layer, details.activation) for layer in range(spec.layers)),
        )

    def _layer(self, file: WeightFile, layer: int, activation: Activation) -> PackedEncoderLayer:
        spec, details, at = self._network.spec, self._network.details, f"layer_{layer}"
        names, hidden = details.names, spec.hidden

        def named(*modules: str) -> tuple[str, ...]:
            return tuple(module.format(layer=layer) for module in modules)

        scale = 1.0 / math.sqrt(spec.head_dim)
        qkv = LinearSource(named(*names.qkv), (hidden,) * 3, hidden, details.qkv_bias, hidden, scale)
        output = LinearSource(named(names.output), (hidden,), hidden, details.output_bias)
        gates = activation.matrices
        up = LinearSource(named(*names.gate_up), (spec.ffn,) * gates, hidden, details.ffn_bias)
        down = LinearSource(named(names.down), (hidden,), spec.ffn, details.ffn_bias)
        return PackedEncoderLayer(
            self._packer.linear(file, file, f"{at}_qkv", qkv),
            self._packer.linear(file, file, f"{at}_output", output),
            self._norm(file, f"{at}_attention_norm", *named(names.attention_norm)),
            self._packer.linear(file, file, f"{at}_up", up),
            self._packer.linear(file, file, f"{at}_down", down),
            self._norm(file, f"{at}_ffn_norm", *named(names.ffn_norm)),
        )

    def _norm(self, file: WeightFile, name: str, module: str) -> PackedNorm:
        return self._packer.layer_norm(file, name, module, self._network.spec.hidden)

    def _rows(self, file: WeightFile, name: str, module: str, rows: int) -> StoredTensor:
        return file.add(name, self._checkpoint.tensor(f"{module}.weight", (rows, self._network.spec.hidden)))


def write_score_head(checkpoint: Checkpoint, network: Network, path: Path) -> None:
    """A layer [hidden, hidden] and its bias, then [1, hidden] and its bias."""
    encoder, hidden = network.encoder, network.spec.hidden
    assert encoder is not None and encoder.score_head is not None
    names = encoder.score_head
    parts: list[Float32] = []
    for module, outputs in ((names.dense, hidden), (names.scores, 1)):
        parts.append(checkpoint.tensor(f"{module}.weight", (outputs, hidden)))
        parts.append(checkpoint.tensor(f"{module}.bias", (outputs,)))
    write_floats(path, *parts)
