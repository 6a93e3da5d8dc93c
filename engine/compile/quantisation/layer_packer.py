"""From a layer's tensors to what the graphs read of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.bundle.specs import RecurrentKind
from engine.compile.quantisation import packed
from engine.compile.quantisation.expert_packer import pack_experts
from engine.compile.quantisation.linear_packer import LinearPacker, LinearSource
from engine.compile.quantisation.methods.table import UNROUNDED, wide_method
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Float32
from engine.models.experts import BesideNames
from engine.models.network import QkNorm


@dataclass(frozen=True, slots=True)
class _Mixer:
    """What differs between a layer with attention and a recurrent one."""

    qkv: LinearSource
    output: LinearSource
    q_norm: StoredTensor | None = None
    k_norm: StoredTensor | None = None
    recurrence: packed.PackedRecurrence | None = None
    sinks: StoredTensor | None = None
    v_norm: StoredTensor | None = None


class LayerPacker:
    """Writes one layer: matrices into `file`, norms, biases and what is never rounded into `small`."""

    def __init__(self, packer: LinearPacker, file: WeightFile, small: WeightFile, layer: int) -> None:
        self._packer, self._file, self._small, self._layer = packer, file, small, layer
        self._network, self._details, self._spec = packer.network, packer.network.details, packer.network.spec

    def pack(self) -> packed.PackedLayer:
        network, names, layer = self._network, self._details.names, self._layer
        mixer, feed_forward = self._mixer(), self._feed_forward()
        norms = {"attention_norm": network.attention_norm(layer), "ffn_norm": network.ffn_norm(layer)}
        norms |= {"attention_post_norm": names.attention_post_norm, "ffn_post_norm": names.ffn_post_norm}
        hidden, has_ending = self._spec.hidden, names.layer_scale or self._details.layer_inputs
        return packed.PackedLayer(
            **{place: self._norm(place, name, hidden) if name else None for place, name in norms.items()},
            qkv=self._linear("qkv", mixer.qkv),
            q_norm=mixer.q_norm,
            k_norm=mixer.k_norm,
            output=self._linear("output", self._added(mixer.output)),
            gate_up=feed_forward and self._linear("gate_up", feed_forward[0]),
            down=feed_forward and self._linear("down", feed_forward[1]),
            recurrence=mixer.recurrence,
            sinks=mixer.sinks,
            experts=self._experts() if layer in network.expert_layers else None,
            v_norm=mixer.v_norm,
            ending=self._ending() if has_ending else None,
            latents=self._latents() if self._details.latent else None,
            gate_cutoff=network.gate_cutoff(layer),
            streams=self._streams() if self._details.altup else None,
        )

    def _named(self, name: str) -> str:
        return name.format(layer=self._layer)

    def _source(self, names: Sequence[str], outputs: tuple[int, ...], inputs: int, bias: bool = False) -> LinearSource:
        return LinearSource(tuple(map(self._named, names)), outputs, inputs, bias)

    def _add(self, place: str, values: Float32) -> StoredTensor:
        return self._small.add(f"layer_{self._layer}_{place}", values)

    def _vector(self, name: str, size: int) -> Float32:
        return self._packer.vector(self._named(name), size)

    def _norm(self, place: str, name: str, size: int, factor: float = 1.0) -> StoredTensor:
        return self._add(place, self._packer.norm(self._named(name), size) * np.float32(factor))

    def _linear(self, place: str, source: LinearSource) -> packed.PackedLinear:
        return self._packer.linear(self._file, self._small, f"layer_{self._layer}_{place}", source)

    def _unrounded(self, place: str, source: LinearSource) -> packed.PackedLinear:
        return self._packer.linear(self._small, self._small, f"layer_{self._layer}_{place}", source, UNROUNDED)

    def _mixer(self) -> _Mixer:
        """Of attention, of recurrence, or of both with one matrix for what reads the norm."""
        if self._layer not in self._spec.attention_layers:
            return self._recurrence()
        mixer = self._attention()
        if self._spec.recurrence_of(self._layer) is None:
            return mixer
        beside = self._recurrence()
        names, outputs = (*mixer.qkv.names, *beside.qkv.names), (*mixer.qkv.outputs, sum(beside.qkv.outputs))
        assert beside.recurrence is not None
        recurrence = replace(beside.recurrence, output=self._linear("recurrent_output", self._added(beside.output)))
        return replace(mixer, qkv=replace(mixer.qkv, names=names, outputs=outputs), recurrence=recurrence)

    def _added(self, output: LinearSource) -> LinearSource:
        """With the multiplier of what is added to the stream."""
        residual = self._details.multipliers.residual
        return output if residual == 1.0 else replace(output, scaled_rows=self._spec.hidden, scale=residual)

    def _attention(self) -> _Mixer:
        details, spec, heads = self._details, self._spec, self._network.heads_of(self._layer)
        names, scale, has_keys = details.names, self._network.attention_scale, spec.owner_of(self._layer) == self._layer
        q_norm = k_norm = None
        # The attention scale costs nothing where a weight can carry it: the query norm, else the query matrix.
        if details.has_qk_norm:
            is_whole = details.qk_norm is QkNorm.ALL
            widths = (heads.query_width, heads.key_width) if is_whole else (heads.head_dim, heads.head_dim)
            q_norm = self._norm("q_norm", names.q_norm, widths[0], scale)
            k_norm = self._norm("k_norm", names.k_norm, widths[1]) if has_keys else None
        outputs = self._network.qkv_outputs(self._layer)
        if details.latent is not None:
            outputs = (outputs[0], sum(outputs[1:]))
        is_carried = details.has_qk_norm or (details.latent is not None and details.latent.query_rank)
        qkv = self._source(self._network.qkv_names(self._layer), outputs, spec.hidden, details.qkv_bias)
        qkv = replace(qkv, scaled_rows=0 if is_carried else heads.query_width, scale=scale)
        attended = self._network.attended_width(self._layer)
        output = self._source((names.output,), (spec.hidden,), attended, details.output_bias)
        output = replace(output, is_robust=True)
        sinks = self._add("sinks", self._vector(names.sinks, spec.heads)) if names.sinks else None
        has_value_norm = details.has_value_norm and has_keys
        v_norm = self._add("v_norm", np.ones(heads.head_dim, np.float32)) if has_value_norm else None
        return _Mixer(qkv, output, q_norm, k_norm, sinks=sinks, v_norm=v_norm)

    def _recurrence(self) -> _Mixer:
        recurrent, names = self._spec.recurrent, self._details.recurrent_names
        assert recurrent is not None
        outputs = (recurrent.channels, recurrent.inputs - recurrent.channels)
        qkv = self._source(names.qkv_gate, outputs, self._spec.hidden)
        output = self._source((names.output,), (self._spec.hidden,), recurrent.value_width)
        return _Mixer(qkv, output, recurrence=packed.PackedRecurrence(self._delta() if recurrent.has_memory else None))

    def _delta(self) -> packed.PackedDelta:
        recurrent, names = self._spec.recurrent, self._details.recurrent_names
        assert recurrent is not None
        heads, is_mamba2, steps, norm = recurrent.value_heads, recurrent.kind is RecurrentKind.MAMBA2, None, None
        if not is_mamba2:
            # A decay is an exponential, and these are few: they are never rounded.
            source = self._source((names.beta, names.decay), (heads, heads), self._spec.hidden)
            steps = self._unrounded("steps", source)
        if names.norm:
            width = recurrent.value_width if is_mamba2 else recurrent.value_dim
            norm = self._add("recurrent_norm", self._vector(f"{names.norm}.weight", width))
        rate = self._add("rate", -np.exp(self._vector(names.a_log, heads)))
        return packed.PackedDelta(steps, rate, self._add("dt_bias", self._vector(names.dt_bias, heads)), norm)

    def _latents(self) -> packed.PackedLatents:
        latent, spec = self._details.latent, self._spec
        assert latent is not None
        query_norm = query_up = None
        if latent.query_rank:
            query_norm = self._norm("query_norm", latent.query_norm, latent.query_rank)
            width = self._network.query_width
            source = self._source((latent.query_up,), (width,), latent.query_rank)
            source = replace(source, scaled_rows=width, scale=self._network.attention_scale)
            query_up = self._linear("query_up", source)
        kv_norm = self._norm("kv_norm", latent.kv_norm, latent.kv_rank)
        source = self._source((latent.kv_up,), (spec.heads * (latent.kept + latent.value_dim),), latent.kv_rank)
        return packed.PackedLatents(query_norm, query_up, kv_norm, self._linear("kv_up", source))

    def _feed_forward(self) -> tuple[LinearSource, LinearSource] | None:
        """What every token goes through in a layer; None where there are only experts, or nothing."""
        details, hidden = self._details, self._spec.hidden
        gate_up, down = self._network.ffn_names(self._layer)
        if not down:
            return None
        has_experts = self._layer in self._network.expert_layers
        ffn = details.experts.spec.shared if details.experts and has_experts else self._network.ffn_of(self._layer)
        matrices = details.activation.matrices
        source = replace(self._source(gate_up, (ffn,) * matrices, hidden, details.ffn_bias), parts=matrices)
        lower = replace(self._source((down,), (hidden,), ffn, details.ffn_bias), is_robust=True)
        return source, self._added(lower)

    def _experts(self) -> packed.PackedExperts:
        experts, hidden = self._details.experts, self._spec.hidden
        assert experts is not None
        names = experts.names
        stacks = pack_experts(self._packer, self._file, self._small, self._layer)
        bias = gate = None
        if names.choice_bias:
            name, checkpoint = self._named(names.choice_bias), self._packer.checkpoint
            bias = self._add("choice_bias", checkpoint.tensor(name, checkpoint.shape(name)).reshape(-1))
        if names.shared_gate:
            gate = self._unrounded("shared_gate", self._source((names.shared_gate,), (1,), hidden))
        # Which experts are chosen hangs on small differences: the router is never rounded.
        router = self._source((names.router,), (experts.spec.count,), hidden, experts.has_router_bias)
        stored = self._unrounded("router", router)
        beside = self._beside(experts.beside) if experts.beside else None
        return packed.PackedExperts(stored, *stacks, bias, gate, beside)

    def _beside(self, names: BesideNames) -> packed.PackedBeside:
        hidden, places = self._spec.hidden, ("norm", "post_norm", "dense_post_norm")
        scale = self._vector(names.router_scale, hidden) / np.float32(math.sqrt(hidden))
        norms = {place: self._norm(f"experts_{place}", getattr(names, place), hidden) for place in places}
        return packed.PackedBeside(self._add("router_norm", scale), **norms)

    def _ending(self) -> packed.PackedEnding:
        """What stands behind the feed-forward of a layer."""
        names, name, hidden = self._details.layer_inputs, self._details.names.layer_scale, self._spec.hidden
        scale = self._add("scale", self._vector(name, 1)) if name else None
        if names is None:
            return packed.PackedEnding(scale)
        norm = self._norm("inputs_norm", names.post_norm, hidden)
        gate = self._linear("inputs_gate", self._source((names.gate,), (names.size,), hidden))
        output = self._linear("inputs_output", self._source((names.output,), (hidden,), names.size))
        return packed.PackedEnding(scale, gate, output, norm)

    def _streams(self) -> packed.PackedStreams:
        """How a layer mixes streams, and its path beside attention."""
        altup, hidden = self._details.altup, self._spec.hidden
        assert altup is not None
        router_norm = self._packer.norm(self._named(altup.router_norm), hidden) / np.float32(hidden)
        count, identity = altup.count, np.eye(altup.count, dtype=np.float32).reshape(-1)
        return packed.PackedStreams(
            self._add("stream_router_norm", router_norm),
            self._few("stream_router", altup.router, (count, hidden)),
            self._few("prediction", altup.prediction, (count**2, count), identity),
            self._few("correction", altup.correction, (count, count), np.ones(count, np.float32)),
            self._add("stream_scale", self._vector(altup.scale, hidden)),
            self._wide("path_left", altup.left, (altup.rank, hidden)),
            self._wide("path_right", altup.right, (hidden, altup.rank)),
            self._norm("path_norm", altup.path_norm, hidden),
        )

    def _few(self, place: str, module: str, shape: tuple[int, int], bias: Float32 | None = None) -> packed.PackedLinear:
        """Numbers that mix streams are few, and never rounded."""
        stored = None if bias is None else self._add(f"{place}_bias", bias)
        source = self._source((module,), shape[:1], shape[1])
        return self._packer.store(self._small, f"layer_{self._layer}_{place}", source, UNROUNDED, stored)

    def _wide(self, place: str, module: str, shape: tuple[int, int]) -> packed.PackedLinear:
        """Matrices that all streams go through are small beside the others: they have 8 bits where those have 4."""
        source, method = self._source((module,), shape[:1], shape[1]), wide_method(self._packer.arguments)
        return self._packer.store(self._file, f"layer_{self._layer}_{place}", source, method)
