"""Names and tensors of fused prefill/decode graphs. Such a graph has N rows and D decode slots. Rows 0 to N - D - 1 are
a prompt's, right-aligned, and read its cache; each of the other rows decodes a sequence of its own and reads that one's
cache. Legend: P = past columns, K = KV heads, H = head size, V = vocabulary."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec
from engine.bundle.specs import FusedSpec
from engine.bundle.tensors import COS, IDS, LOGITS, MASK, SIN, Form, check_forms, encoding_of, row_forms
from engine.errors import BundleError

CONTROL = "fusion_ctrl"
CONTROL_HEAD = 5  # prefill active, decodes active, prefill rows, reserved, prefill past; then the past of each decode
_NAME = re.compile(r"model\.0\.(?:pd\.s(\d+)(?:\.d(\d+))?|s1|d(\d+))")


@dataclass(frozen=True, slots=True, order=True)
class FusedShape:
    """Rows N of a graph, and how many of them are decode slots."""

    rows: int
    slots: int

    @property
    def prefill_rows(self) -> int:
        """Rows for a prompt; 0 in a graph that only decodes."""
        return self.rows - self.slots

    @property
    def logit_rows(self) -> int:
        """Rows that the graph gives logits of: the last one of the prompt, then every decode."""
        return self.slots + bool(self.prefill_rows)

    @property
    def caches(self) -> tuple[str, ...]:
        """What the graph calls its caches: the prompt's first."""
        decodes = tuple(f"decode{slot}" for slot in range(self.slots)) if self.slots > 1 else ("decode",)
        return (("prefill",) if self.prefill_rows else ()) + decodes

    @property
    def name(self) -> str:
        if not self.prefill_rows:
            return "model.0.s1" if self.rows == 1 else f"model.0.d{self.rows}"
        return f"model.0.pd.s{self.rows}" + (f".d{self.slots}" if self.slots > 1 else "")


def fused_shape(name: str) -> FusedShape:
    """The shape that a graph's name says. BundleError for any other name."""
    if (found := _NAME.fullmatch(name)) is None:
        raise BundleError(
            f"{name} is not the name of a fused graph, such as model.0.pd.s32, model.0.pd.s32.d4, model.0.s1"
        )
    total, slots, decodes = (int(part) if part else 0 for part in found.groups())
    shape = FusedShape(total, slots or 1) if total else FusedShape(decodes or 1, decodes or 1)
    if shape.name != name or shape.prefill_rows < 0:
        raise BundleError(f"fused graph {name} cannot have {shape.rows} rows of which {shape.slots} decode")
    return shape


def shape_for(rows: int, decode_slots: int) -> FusedShape:
    """The graph of so many rows in a bundle of so many decode slots: none has more slots than rows."""
    return FusedShape(rows, min(rows, decode_slots))


def fused_shapes(spec: FusedSpec) -> tuple[FusedShape, ...]:
    """Every graph of a bundle, fewest rows first: one decode, all slots without a prompt, then with one."""
    rows = sorted({1, spec.decode_slots, *spec.pd_total_len})
    return tuple(shape_for(count, spec.decode_slots) for count in rows)


def cache_tensors(kind: str, cache: str, layer: int) -> tuple[str, str]:
    """Names of keys and values; kind 'past' for inputs, 'updated_past' for outputs."""
    return f"{kind}_key_{cache}_{layer}", f"{kind}_value_{cache}_{layer}"


def fresh_tensors(layer: int) -> tuple[str, str]:
    """Names of the keys and values that the rows of a step come to."""
    return f"present_key_{layer}", f"present_value_{layer}"


def input_order(shape: FusedShape, layers: int) -> Iterator[str]:
    """Inputs in the contract's order: rows first, then caches one after the other, keys of all layers before values."""
    yield from (IDS, COS, SIN, MASK, CONTROL)
    for cache in shape.caches:
        for side in range(2):
            yield from (cache_tensors("past", cache, layer)[side] for layer in range(layers))


def fused_forms(manifest: Manifest, shape: FusedShape) -> tuple[dict[str, Form], dict[str, Form]]:
    model, spec = manifest.model, manifest.fused
    assert spec is not None
    rows, past = shape.rows, spec.past
    inputs = row_forms(manifest, rows, past + rows)
    if spec.kv_update_on_device:  # else nothing in the graph depends on it: the mask says what is active
        inputs[CONTROL] = ("int32", (CONTROL_HEAD + shape.slots,))
    outputs: dict[str, Form] = {LOGITS: ("", (shape.logit_rows, model.vocab))}
    for layer in range(model.layers):
        outputs |= _cache_forms(manifest, fresh_tensors(layer), rows)
        for cache in shape.caches:
            inputs |= _cache_forms(manifest, cache_tensors("past", cache, layer), past)
            if spec.kv_update_on_device:
                outputs |= _cache_forms(manifest, cache_tensors("updated_past", cache, layer), past)
    return inputs, outputs


def check_fused(manifest: Manifest) -> None:
    """BundleError names what is missing, or the graph and the tensor that is not as the model wants it."""
    spec = manifest.fused
    assert spec is not None
    if manifest.diffusion is not None:
        raise BundleError("a fused graph decodes one token a step of each sequence, this model denoises blocks of them")
    if spec.pd_prefill_len != tuple(rows - spec.decode_slots for rows in spec.pd_total_len):
        raise BundleError("fused: pd_prefill_len must be pd_total_len without the decode slots")
    wanted = {shape.name for shape in fused_shapes(spec)}
    names = [graph.name for graph in manifest.graphs]
    if sorted(names) != sorted(wanted):
        raise BundleError(f"a bundle of {spec} has the graphs {', '.join(sorted(wanted))}; this has {', '.join(names)}")
    codes: dict[tuple[int, int], TensorSpec] = {}
    for graph in manifest.graphs:
        shape = fused_shape(graph.name)
        if (graph.rows, graph.context) != (shape.rows, spec.past + shape.rows):
            raise BundleError(f"graph {graph.name} has {graph.rows} rows and a context of {graph.context}")
        check_forms(graph, *fused_forms(manifest, shape))
        _check_encodings(graph, codes)


def _cache_forms(manifest: Manifest, names: tuple[str, str], columns: int) -> dict[str, Form]:
    model = manifest.model
    key: Form = (manifest.kv_dtype, (model.kv_heads, model.head_dim, columns))
    return {names[0]: key, names[1]: (manifest.kv_dtype, (model.kv_heads, columns, model.head_dim))}


def _check_encodings(graph: GraphSpec, codes: dict[tuple[int, int], TensorSpec]) -> None:
    """Keys and values are never converted, so a layer's are stored alike wherever they come up. Fills `codes`."""
    for tensor in (*graph.inputs, *graph.outputs):
        found = re.fullmatch(r"(?:past|updated_past|present)_(key|value)_(?:\w+_)?(\d+)", tensor.name)
        if found is not None:
            twin = codes.setdefault((found[1] == "value", int(found[2])), tensor)
            if encoding_of(twin) != encoding_of(tensor):
                raise BundleError(f"graph {graph.name} stores {tensor.name} in another way than {twin.name} is stored")
