"""From checkpoint tensors to what a network has beside one stream: inputs of each layer, and several streams."""

import math

import numpy as np

from engine.compile.graphs.embedding import store_table
from engine.compile.quantisation.linear_packer import LinearPacker, LinearSource
from engine.compile.quantisation.methods.table import UNROUNDED, embedding_bits, wide_method
from engine.compile.quantisation.packed import PackedEnding, PackedLayerInputs, PackedLinear, PackedStreams
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32


class StreamPacker(LinearPacker):
    """Writes what is not of attention or feed-forward."""

    def ending(self, file: WeightFile, small: WeightFile, layer: int) -> PackedEnding:
        """What stands behind the feed-forward of a layer."""
        details, hidden, at = self._network.details, self._network.spec.hidden, f"layer_{layer}"
        name = details.names.layer_scale.format(layer=layer)
        scale = small.add(f"{at}_scale", self.vector(name, 1)) if name else None
        names = details.layer_inputs
        if names is None:
            return PackedEnding(scale)
        gate = LinearSource((names.gate.format(layer=layer),), (names.size,), hidden)
        output = LinearSource((names.output.format(layer=layer),), (hidden,), names.size)
        norm = small.add(f"{at}_inputs_norm", self.norm(names.post_norm.format(layer=layer), hidden))
        stored = self.linear(file, small, f"{at}_inputs_gate", gate)
        return PackedEnding(scale, stored, self.linear(file, small, f"{at}_inputs_output", output), norm)

    def layer_inputs(self, file: WeightFile, small: WeightFile) -> PackedLayerInputs:
        """What every layer takes of tokens."""
        names, spec = self._network.details.layer_inputs, self._network.spec
        assert names is not None
        width, half = spec.layers * names.size, math.sqrt(0.5)
        table = LinearSource((names.table,), (names.vocab,), width)
        bits = embedding_bits(self._arguments)
        stored = store_table(small, self.slices(table), (names.vocab, width), bits, "layer_table")
        source = LinearSource((names.projection,), (width,), spec.hidden, False, width, spec.hidden**-0.5)
        norm = small.add("layer_inputs_norm", self.norm(names.norm, names.size) * np.float32(half))
        projection = self.linear(file, small, "layer_inputs_projection", source)
        return PackedLayerInputs(stored, names.vocab, half * math.sqrt(names.size), projection, norm)

    def streams(self, file: WeightFile, small: WeightFile, layer: int) -> PackedStreams:
        """How a layer mixes streams, and its path beside attention."""
        altup, hidden, at = self._network.details.altup, self._network.spec.hidden, f"layer_{layer}"
        assert altup is not None
        count = altup.count
        router_norm = self.norm(altup.router_norm.format(layer=layer), hidden) / np.float32(hidden)
        path_norm = self.norm(altup.path_norm.format(layer=layer), hidden)
        scale = self.vector(altup.scale.format(layer=layer), hidden)
        left = LinearSource((altup.left.format(layer=layer),), (altup.rank,), hidden)
        right = LinearSource((altup.right.format(layer=layer),), (hidden,), altup.rank)
        identity, ones = np.eye(count, dtype=np.float32).reshape(-1), np.ones(count, np.float32)
        return PackedStreams(
            small.add(f"{at}_stream_router_norm", router_norm),
            self._small(small, f"{at}_stream_router", altup.router.format(layer=layer), (count, hidden)),
            self._small(small, f"{at}_prediction", altup.prediction.format(layer=layer), (count**2, count), identity),
            self._small(small, f"{at}_correction", altup.correction.format(layer=layer), (count, count), ones),
            small.add(f"{at}_stream_scale", scale),
            self._wide_linear(file, f"{at}_path_left", left),
            self._wide_linear(file, f"{at}_path_right", right),
            small.add(f"{at}_path_norm", path_norm),
        )

    def spreading(self, file: WeightFile) -> PackedLinear:
        """What makes all streams but the first of the embedding, side by side."""
        altup, hidden = self._network.details.altup, self._network.spec.hidden
        assert altup is not None
        source = LinearSource(altup.spreading, (hidden,) * len(altup.spreading), hidden)
        return self._wide_linear(file, "spreading", source)

    def merging(self, file: WeightFile) -> tuple[PackedLinear, ...]:
        """What the last norm takes of each stream but the first."""
        altup, hidden = self._network.details.altup, self._network.spec.hidden
        sources = [LinearSource((name,), (hidden,), hidden) for name in altup.merging] if altup else []
        return tuple(self._wide_linear(file, f"merging_{index}", source) for index, source in enumerate(sources))

    def _small(
        self, small: WeightFile, name: str, module: str, shape: tuple[int, int], bias: Float32 | None = None
    ) -> PackedLinear:
        """Numbers that mix streams are few, and never rounded."""
        source = LinearSource((module,), shape[:1], shape[1])
        return self.store(small, name, source, UNROUNDED, None if bias is None else small.add(f"{name}_bias", bias))

    def _wide_linear(self, file: WeightFile, name: str, source: LinearSource) -> PackedLinear:
        """Matrices that all streams go through are small beside the others: they have 8 bits where those have 4."""
        return self.store(file, name, source, wide_method(self._arguments), None)
