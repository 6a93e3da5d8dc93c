"""From checkpoint tensors to packed parts: one matrix in memory at a time, tables in slices."""

import math

import numpy as np

from engine.bundle.specs import ModelTask
from engine.compile.graphs.embedding import NAME, store_integer_table, store_table, table_of
from engine.compile.graphs.pool import PartPlan
from engine.compile.quantisation.layer_packer import LayerPacker
from engine.compile.quantisation.linear_packer import LinearPacker, LinearSource
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import embedding_bits, head_method, keeps_codes, method_of, wide_method
from engine.compile.quantisation.packed import PackedLayerInputs, PackedLinear, PackedPart, PackedTable
from engine.compile.quantisation.weight_file import WeightFile


class WeightPacker(LinearPacker):
    """Writes the weights of parts."""

    def pack(self, part: PartPlan, file: WeightFile, small: WeightFile) -> PackedPart:
        """Write the matrices of a part into its file; its table, norms and biases into `small`, perhaps the same."""
        names, spec, is_embedder = self.network.details.names, self.network.spec, self.arguments.task is ModelTask.EMBED
        shares_table = part.has_table and part.has_head and spec.tied_head and self._keeps_table()
        table = self.table(small) if part.has_table and not shares_table else None
        inputs = self._layer_inputs(file, small) if part.has_table and spec.layer_inputs else None
        spreading = self._spreading(file) if part.has_table and spec.streams > 1 else None
        layers = tuple(LayerPacker(self, file, small, layer).pack() for layer in part.layers)
        if not part.has_head:
            return PackedPart(table, layers, None, None, layer_inputs=inputs, spreading=spreading)
        # The multiplier of the logits, and what they are capped at, are in the last norm: it costs nothing there.
        gain = np.float32(1.0 if is_embedder else self.network.logit_gain)
        final_norm = small.add("final_norm", self.norm(names.final_norm, spec.hidden) * gain)
        head = None if is_embedder else self._head(file, shares_table)
        first = small.add("embedding_norm", self.norm(name, spec.hidden)) if (name := names.embedding_norm) else None
        if shares_table and head is not None:
            table = table_of(head.matrix)
        return PackedPart(table, layers, final_norm, head, first, inputs, spreading, self._merging(file))

    def _keeps_table(self) -> bool:
        """Whether rows can be looked up in the table's blocks as the file has them, and such blocks are kept."""
        arguments, tensor = self.arguments, f"{self.network.details.names.embedding}.weight"
        is_kept = keeps_codes(arguments) and head_method(arguments) is method_of(arguments)
        form = self.checkpoint.form(tensor)
        if not is_kept or arguments.embedding_bits or arguments.task is ModelTask.EMBED or form is None:
            return False
        blocks = self.checkpoint.blocks(tensor, 0, 1)
        lacks = form.order or form.has_zero_points or self.network.spec.hidden % form.block
        return not lacks and blocks is not None and blocks.offsets is None

    def _head(self, file: WeightFile, is_table: bool) -> PackedLinear:
        names, spec = self.network.details.names, self.network.spec
        source = LinearSource((names.embedding if spec.tied_head else names.head,), (spec.vocab,), spec.hidden)
        return self.store(file, "head", source, head_method(self.arguments), keeps_coarse=is_table)

    def table(self, file: WeightFile) -> PackedTable:
        spec = self.network.spec
        source = LinearSource((self.network.details.names.embedding,), (spec.vocab,), spec.hidden)
        dims = (spec.vocab, spec.hidden)
        if method_of(self.arguments).activations is Activations.INTEGER:
            return store_integer_table(file, lambda: self.slices(source), dims)
        if self._keeps_table():
            return table_of(self.store(file, NAME, source, method_of(self.arguments)).matrix)
        return store_table(file, self.slices(source), dims, embedding_bits(self.arguments))

    def _layer_inputs(self, file: WeightFile, small: WeightFile) -> PackedLayerInputs:
        """What every layer takes of tokens."""
        names, spec = self.network.details.layer_inputs, self.network.spec
        assert names is not None
        width, half = spec.layers * names.size, math.sqrt(0.5)
        slices = self.slices(LinearSource((names.table,), (names.vocab,), width))
        table = store_table(small, slices, (names.vocab, width), embedding_bits(self.arguments), "layer_table")
        source = LinearSource((names.projection,), (width,), spec.hidden, False, width, spec.hidden**-0.5)
        norm = small.add("layer_inputs_norm", self.norm(names.norm, names.size) * np.float32(half))
        projection = self.linear(file, small, "layer_inputs_projection", source)
        return PackedLayerInputs(table, names.vocab, half * math.sqrt(names.size), projection, norm)

    def _spreading(self, file: WeightFile) -> PackedLinear:
        """What makes all streams but the first of the embedding, side by side."""
        altup, hidden = self.network.details.altup, self.network.spec.hidden
        assert altup is not None
        source = LinearSource(altup.spreading, (hidden,) * len(altup.spreading), hidden)
        return self.store(file, "spreading", source, wide_method(self.arguments))

    def _merging(self, file: WeightFile) -> tuple[PackedLinear, ...]:
        """What the last norm takes of each stream but the first."""
        altup, hidden, method = self.network.details.altup, self.network.spec.hidden, wide_method(self.arguments)
        sources = [LinearSource((name,), (hidden,), hidden) for name in altup.merging] if altup else []
        return tuple(self.store(file, f"merging_{index}", source, method) for index, source in enumerate(sources))
