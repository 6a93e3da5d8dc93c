"""From checkpoint tensors to packed parts: one matrix in memory at a time, tables in slices."""

import math
from dataclasses import dataclass, replace

import numpy as np

from engine.bundle.specs import ModelTask, RecurrentKind
from engine.compile.graphs.embedding import NAME, store_integer_table, store_table, table_of
from engine.compile.graphs.pool import PartPlan
from engine.compile.quantisation.expert_packer import ExpertPacker
from engine.compile.quantisation.linear_packer import LinearSource, StreamPacker
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import UNROUNDED, embedding_bits, head_method, keeps_codes, method_of
from engine.compile.quantisation.packed import (
    PackedBeside,
    PackedDelta,
    PackedExperts,
    PackedLatents,
    PackedLayer,
    PackedLinear,
    PackedPart,
    PackedRecurrence,
    PackedTable,
)
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.models.experts import BesideNames
from engine.models.network import QkNorm


@dataclass(frozen=True, slots=True)
class _Mixer:
    """What differs between a layer with attention and a recurrent one."""

    qkv: LinearSource
    output: LinearSource
    q_norm: StoredTensor | None = None
    k_norm: StoredTensor | None = None
    recurrence: PackedRecurrence | None = None
    sinks: StoredTensor | None = None
    v_norm: StoredTensor | None = None


class WeightPacker(StreamPacker):
    """Writes the weights of parts."""

    def pack(self, part: PartPlan, file: WeightFile, small: WeightFile) -> PackedPart:
        """Write the matrices of a part into its file; its table, norms and biases into `small`, perhaps the same."""
        names, spec = self._network.details.names, self._network.spec
        shares_table = part.has_table and part.has_head and spec.tied_head and self._keeps_table()
        table = self.table(small) if part.has_table and not shares_table else None
        inputs = self.layer_inputs(file, small) if part.has_table and spec.layer_inputs else None
        spreading = self.spreading(file) if part.has_table and spec.streams > 1 else None
        layers = tuple(self._layer(file, small, layer) for layer in part.layers)
        if not part.has_head:
            return PackedPart(table, layers, None, None, layer_inputs=inputs, spreading=spreading)
        # The multiplier of the logits, and what they are capped at, are in the last norm: it costs nothing there.
        gain = 1.0 if self._arguments.task is ModelTask.EMBED else self._network.logit_gain
        final_norm = small.add("final_norm", self.norm(names.final_norm, spec.hidden) * np.float32(gain))
        head = None if self._arguments.task is ModelTask.EMBED else self._head(file)
        first = small.add("embedding_norm", self.norm(name, spec.hidden)) if (name := names.embedding_norm) else None
        if shares_table and head is not None:
            table = table_of(head.matrix)
        return PackedPart(table, layers, final_norm, head, first, inputs, spreading, self.merging(file))

    def _keeps_table(self) -> bool:
        """Whether rows can be looked up in the table's blocks as the file has them, and such blocks are kept."""
        arguments, tensor = self._arguments, f"{self._network.details.names.embedding}.weight"
        is_kept = keeps_codes(arguments) and head_method(arguments) is method_of(arguments)
        form = self._checkpoint.form(tensor)
        if not is_kept or arguments.embedding_bits or arguments.task is ModelTask.EMBED or form is None:
            return False
        blocks = self._checkpoint.blocks(tensor, 0, 1)
        lacks = form.order or form.has_zero_points or self._network.spec.hidden % form.block
        return not lacks and blocks is not None and blocks.offsets is None

    def _layer(self, file: WeightFile, small: WeightFile, layer: int) -> PackedLayer:
        details, spec = self._network.details, self._network.spec
        names, at = details.names, f"layer_{layer}"
        mixer = self._mixer(file, small, layer)
        feed_forward = self._feed_forward(layer)
        places = ("attention_post_norm", "ffn_post_norm")
        found = {"attention_norm": self._network.attention_norm(layer), "ffn_norm": self._network.ffn_norm(layer)}
        found |= {place: getattr(names, place) for place in places}
        norms = {
            place: small.add(f"{at}_{place}", self.norm(name.format(layer=layer), spec.hidden)) if name else None
            for place, name in found.items()
        }
        return PackedLayer(
            norms["attention_norm"],
            self.linear(file, small, f"{at}_qkv", mixer.qkv),
            mixer.q_norm,
            mixer.k_norm,
            self.linear(file, small, f"{at}_output", self._added(mixer.output)),
            norms["ffn_norm"],
            feed_forward and self.linear(file, small, f"{at}_gate_up", feed_forward[0]),
            feed_forward and self.linear(file, small, f"{at}_down", feed_forward[1]),
            mixer.recurrence,
            norms["attention_post_norm"],
            norms["ffn_post_norm"],
            mixer.sinks,
            self._experts(file, small, layer) if layer in self._network.expert_layers else None,
            mixer.v_norm,
            self.ending(file, small, layer) if names.layer_scale or details.layer_inputs else None,
            self._latents(file, small, layer) if details.latent else None,
            self._network.gate_cutoff(layer),
            self.streams(file, small, layer) if details.altup else None,
        )

    def _mixer(self, file: WeightFile, small: WeightFile, layer: int) -> _Mixer:
        """Of attention, of recurrence, or of both with one matrix for what reads the norm."""
        spec = self._network.spec
        if layer not in spec.attention_layers:
            return self._recurrence(small, layer)
        mixer = self._attention(small, layer)
        if spec.recurrence_of(layer) is None:
            return mixer
        beside = self._recurrence(small, layer)
        names, outputs = (*mixer.qkv.names, *beside.qkv.names), (*mixer.qkv.outputs, sum(beside.qkv.outputs))
        assert beside.recurrence is not None
        output = self.linear(file, small, f"layer_{layer}_recurrent_output", self._added(beside.output))
        recurrence = replace(beside.recurrence, output=output)
        return replace(mixer, qkv=replace(mixer.qkv, names=names, outputs=outputs), recurrence=recurrence)

    def _added(self, output: LinearSource) -> LinearSource:
        """With the multiplier of what is added to the stream."""
        residual = self._network.details.multipliers.residual
        return output if residual == 1.0 else replace(output, scaled_rows=self._network.spec.hidden, scale=residual)

    def _latents(self, file: WeightFile, small: WeightFile, layer: int) -> PackedLatents:
        latent, spec, at = self._network.details.latent, self._network.spec, f"layer_{layer}"
        assert latent is not None
        query_norm = query_up = None
        if latent.query_rank:
            query_norm = small.add(
                f"{at}_query_norm", self.norm(latent.query_norm.format(layer=layer), latent.query_rank)
            )
            width, scale = self._network.query_width, self._network.attention_scale
            source = LinearSource(
                (latent.query_up.format(layer=layer),), (width,), latent.query_rank, False, width, scale
            )
            query_up = self.linear(file, small, f"{at}_query_up", source)
        kv_norm = small.add(f"{at}_kv_norm", self.norm(latent.kv_norm.format(layer=layer), latent.kv_rank))
        outputs = spec.heads * (latent.kept + latent.value_dim)
        source = LinearSource((latent.kv_up.format(layer=layer),), (outputs,), latent.kv_rank)
        return PackedLatents(query_norm, query_up, kv_norm, self.linear(file, small, f"{at}_kv_up", source))

    def _feed_forward(self, layer: int) -> tuple[LinearSource, LinearSource] | None:
        """What every token goes through in a layer; None where there are only experts, or nothing."""
        details, spec = self._network.details, self._network.spec
        gate_up_names, down_name = self._network.ffn_names(layer)
        if not down_name:
            return None
        has_experts = details.experts is not None and layer in self._network.expert_layers
        ffn = details.experts.spec.shared if details.experts and has_experts else self._network.ffn_of(layer)
        stacked = tuple(name.format(layer=layer) for name in gate_up_names)
        gate_up = LinearSource(stacked, (ffn,) * details.activation.matrices, spec.hidden, details.ffn_bias)
        down = (down_name.format(layer=layer),)
        return gate_up, self._added(LinearSource(down, (spec.hidden,), ffn, details.ffn_bias))

    def _experts(self, file: WeightFile, small: WeightFile, layer: int) -> PackedExperts:
        experts, at = self._network.details.experts, f"layer_{layer}"
        assert experts is not None
        names, hidden = experts.names, self._network.spec.hidden
        packer = ExpertPacker(self._checkpoint, self._network, self._arguments, self._on_read)
        stacks = packer.pack(file, small, layer, self._network.details.multipliers.residual)
        # Which experts are chosen hangs on small differences: the router is never rounded.
        router = LinearSource(
            (names.router.format(layer=layer),), (experts.spec.count,), hidden, experts.has_router_bias
        )
        bias = gate = None
        if names.choice_bias:
            name = names.choice_bias.format(layer=layer)
            values = self._checkpoint.tensor(name, self._checkpoint.shape(name)).reshape(-1)
            bias = small.add(f"{at}_choice_bias", values)
        if names.shared_gate:
            source = LinearSource((names.shared_gate.format(layer=layer),), (1,), hidden)
            gate = self.store(small, f"{at}_shared_gate", source, UNROUNDED, None)
        router_bias = small.add(f"{at}_router_bias", self._bias(router)) if router.has_bias else None
        stored = self.store(small, f"{at}_router", router, UNROUNDED, router_bias)
        beside = self._beside(small, layer, experts.beside) if experts.beside else None
        return PackedExperts(stored, *stacks, bias, gate, beside)

    def _beside(self, small: WeightFile, layer: int, names: BesideNames) -> PackedBeside:
        hidden, at = self._network.spec.hidden, f"layer_{layer}"
        scale = self.vector(names.router_scale.format(layer=layer), hidden) / np.float32(math.sqrt(hidden))
        norms = {place: getattr(names, place) for place in ("norm", "post_norm", "dense_post_norm")}
        stored = {
            place: small.add(f"{at}_experts_{place}", self.norm(module.format(layer=layer), hidden))
            for place, module in norms.items()
        }
        return PackedBeside(small.add(f"{at}_router_norm", scale), **stored)

    def _attention(self, small: WeightFile, layer: int) -> _Mixer:
        details, spec, heads = self._network.details, self._network.spec, self._network.heads_of(layer)
        names, at = details.names, f"layer_{layer}"
        scale, has_keys = self._network.attention_scale, spec.owner_of(layer) == layer
        q_norm = k_norm = None
        # The attention scale costs nothing where a weight can carry it: the query norm, else the query matrix.
        if details.has_qk_norm:
            is_whole = details.qk_norm is QkNorm.ALL
            widths = (heads.query_width, heads.key_width) if is_whole else (heads.head_dim, heads.head_dim)
            scaled = self.norm(names.q_norm.format(layer=layer), widths[0]) * np.float32(scale)
            q_norm = small.add(f"{at}_q_norm", scaled)
        if details.has_qk_norm and has_keys:
            k_norm = small.add(f"{at}_k_norm", self.norm(names.k_norm.format(layer=layer), widths[1]))
        outputs = self._network.qkv_outputs(layer)
        if details.latent is not None:
            outputs = (outputs[0], sum(outputs[1:]))
        is_carried = details.has_qk_norm or (details.latent is not None and details.latent.query_rank)
        modules = tuple(name.format(layer=layer) for name in self._network.qkv_names(layer))
        scaled_rows = 0 if is_carried else heads.query_width
        qkv = LinearSource(modules, outputs, spec.hidden, details.qkv_bias, scaled_rows, scale)
        attended = self._network.attended_width(layer)
        output = LinearSource((names.output.format(layer=layer),), (spec.hidden,), attended, details.output_bias)
        sinks = self.vector(names.sinks.format(layer=layer), spec.heads) if names.sinks else None
        stored = None if sinks is None else small.add(f"{at}_sinks", sinks)
        ones = np.ones(heads.head_dim, np.float32)
        v_norm = small.add(f"{at}_v_norm", ones) if details.has_value_norm and has_keys else None
        return _Mixer(qkv, output, q_norm, k_norm, sinks=stored, v_norm=v_norm)

    def _recurrence(self, small: WeightFile, layer: int) -> _Mixer:
        spec, names = self._network.spec, self._network.details.recurrent_names
        recurrent = spec.recurrent
        assert recurrent is not None
        qkv = LinearSource(
            tuple(name.format(layer=layer) for name in names.qkv_gate),
            (recurrent.channels, recurrent.inputs - recurrent.channels),
            spec.hidden,
        )
        output = LinearSource((names.output.format(layer=layer),), (spec.hidden,), recurrent.value_width)
        delta = self._delta(small, layer) if recurrent.has_memory else None
        return _Mixer(qkv, output, recurrence=PackedRecurrence(delta))

    def _delta(self, small: WeightFile, layer: int) -> PackedDelta:
        spec, names, at = self._network.spec, self._network.details.recurrent_names, f"layer_{layer}"
        recurrent = spec.recurrent
        assert recurrent is not None
        heads = recurrent.value_heads
        is_mamba2, stored = recurrent.kind is RecurrentKind.MAMBA2, None
        if not is_mamba2:
            modules = (names.beta.format(layer=layer), names.decay.format(layer=layer))
            steps = LinearSource(modules, (heads, heads), spec.hidden)
            # A decay is an exponential, and these are few: they are never rounded.
            stored = self.store(small, f"{at}_steps", steps, UNROUNDED, None)
        rate = -np.exp(self.vector(names.a_log.format(layer=layer), heads))
        dt_bias = self.vector(names.dt_bias.format(layer=layer), heads)
        width = recurrent.value_width if is_mamba2 else recurrent.value_dim
        norm = None
        if names.norm:
            norm = small.add(f"{at}_recurrent_norm", self.vector(f"{names.norm.format(layer=layer)}.weight", width))
        return PackedDelta(stored, small.add(f"{at}_rate", rate), small.add(f"{at}_dt_bias", dt_bias), norm)

    def _head(self, file: WeightFile) -> PackedLinear:
        names, spec = self._network.details.names, self._network.spec
        source = LinearSource((names.embedding if spec.tied_head else names.head,), (spec.vocab,), spec.hidden)
        return self.store(file, "head", source, head_method(self._arguments), None)

    def table(self, file: WeightFile) -> PackedTable:
        spec = self._network.spec
        source = LinearSource((self._network.details.names.embedding,), (spec.vocab,), spec.hidden)
        dims = (spec.vocab, spec.hidden)
        if method_of(self._arguments).activations is Activations.INTEGER:
            return store_integer_table(file, lambda: self.slices(source), dims)
        if self._keeps_table():
            return table_of(self.store(file, NAME, source, method_of(self._arguments), None).matrix)
        return store_table(file, self.slices(source), dims, embedding_bits(self._arguments))
