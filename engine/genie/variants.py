"""From the graphs of all binaries to variants: the parts of each (rows, context) in running order, checked as one."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.bundle.manifest import GraphKind
from engine.errors import BundleError
from engine.genie.parts import Part, Slot
from engine.genie.roles import STATES, Role

WITH_RESULT = (GraphKind.DECODER, GraphKind.DEFAULT)
WITH_LAYERS = (*WITH_RESULT, GraphKind.DECODER_PREFILL)


@dataclass(frozen=True, slots=True)
class Variant:
    """Parts in running order; `head` is the lone LM head, if it is a part of its own."""

    rows: int
    context: int
    body: tuple[Part, ...]
    head: Part | None

    @property
    def chain(self) -> tuple[Part, ...]:
        return (*self.body, self.head) if self.head else self.body

    @property
    def is_kv_only(self) -> bool:
        """Whether keys and values are all it gives: no logits, and nothing that a head could take."""
        return self.body[-1].kind is GraphKind.DECODER_PREFILL

    @property
    def is_serial(self) -> bool:
        return any(part.is_serial for part in self.body)

    @property
    def reads_whole_context(self) -> bool:
        return not any(part.layers for part in self.body)

    @property
    def is_scatter(self) -> bool:
        return any(part.is_scatter for part in self.body)

    def __str__(self) -> str:
        return f"ar{self.rows}_cl{self.context}"


def find_variants(parts: Sequence[Part]) -> tuple[Variant, ...]:
    """Every complete variant, ascending. BundleError when parts are missing, double or do not fit each other. Those
    that give logits come first. KV-only graphs are left out where another graph has their layers and shape."""
    shapes = {(part.rows, part.context) for part in parts if part.context is not None and part.kind in WITH_LAYERS}
    if not shapes:
        raise BundleError("the bundle has no graph with layers and an attention mask")
    variants = [_variant(parts, rows, context) for rows, context in sorted(shapes)]
    variants.sort(key=lambda variant: variant.is_kv_only)
    if variants[0].is_kv_only:
        graph = variants[0].body[-1].graph
        raise BundleError(f"graph {graph} gives keys and values only, and no graph of another shape gives logits")
    _check_alike(variants)
    _check_leftovers(parts, {variant.rows for variant in variants})
    return tuple(variants)


def _check_leftovers(parts: Iterable[Part], rows: Collection[int]) -> None:
    """An embedding or a head without layers of its rows is what a binary left out of ctx-bins leaves behind."""
    for part in parts:
        if part.kind in (GraphKind.LUT, GraphKind.LMHEAD) and part.rows not in rows:
            raise BundleError(
                f"graph {part.graph} of {part.binary} has {part.rows} rows, but no graph with layers has "
                "(are all parts in ctx-bins?)"
            )


def _variant(parts: Sequence[Part], rows: int, context: int) -> Variant:
    same = [part for part in parts if part.rows == rows]
    fitting = [part for part in same if part.context == context]
    layers = [part for part in fitting if part.kind in WITH_RESULT]
    covered = {layer for part in layers for layer in part.layers}
    layers += [part for part in fitting if part.kind is GraphKind.DECODER_PREFILL and not covered & {*part.layers}]
    layers.sort(key=lambda part: part.layers or part.named_part or ())
    first, last = layers[0], layers[-1]
    name = f"variant ar{rows}_cl{context}"
    body, head = tuple(layers), None
    if first.input_of(Role.IDS) is None and first.input_of(Role.EMBEDS) is None:
        missing = f"{name}: no part turns token ids into the first hidden state"
        body = (_one(same, GraphKind.LUT, context, missing), *body)
    if last.output_of(Role.LOGITS) is None and last.kind is not GraphKind.DECODER_PREFILL:
        head = _one(same, GraphKind.LMHEAD, context, f"{name}: no part gives logits")
    variant = Variant(rows, context, body, head)
    _check_chain(variant, name)
    return variant


def _one(parts: Iterable[Part], kind: GraphKind, context: int, missing: str) -> Part:
    """The graph of a kind; one named for this context before others, as they differ in nothing else."""
    found = [part for part in parts if part.kind is kind]
    if not found:
        raise BundleError(missing)
    return next((part for part in found if part.named_context == context), found[0])


def _check_chain(variant: Variant, name: str) -> None:
    layers = [layer for part in variant.body for layer in part.layers]
    if len(set(layers)) != len(layers):
        double = next(layer for layer in layers if layers.count(layer) > 1)
        raise BundleError(f"{name}: layer {double} is in more than one graph")
    missing = sorted(set(range(max(layers, default=-1) + 1)) - set(layers))
    if missing:
        raise BundleError(f"{name}: layer {missing[0]} is in no graph (are all parts in ctx-bins?)")
    if variant.reads_whole_context:
        _check_numbers(variant, name)
    if not variant.is_serial:
        _check_heads(variant, name)
    with_layers = [part for part in variant.body if part.layers]
    for part in with_layers:
        if part.is_scatter != with_layers[0].is_scatter:
            takes, lacks = (part, with_layers[0]) if part.is_scatter else (with_layers[0], part)
            raise BundleError(f"{name}: tensor cache_index is an input of {takes.graph}, but not of {lacks.graph}")
    for before, after in pairwise(variant.chain):
        given, taken = before.result, after.input_of(Role.HIDDEN)
        if given is None:
            raise BundleError(f"graph {before.graph} must have one output beside the caches, it has none")
        if taken is None:
            raise BundleError(f"{name}: graph {after.graph} takes tokens in the middle of the chain")
        if (given.spec.encoding, given.spec.shape) != (taken.spec.encoding, taken.spec.shape):
            raise BundleError(
                f"{name}: tensor {given.name} of {before.graph} does not fit {taken.name} of {after.graph}: "
                f"{given.spec} and {taken.spec}"
            )


def _check_numbers(variant: Variant, name: str) -> None:
    """Graphs without caches do not say which layers they have: only their names tell whether one is missing."""
    chain = variant.chain
    if [part.named_part for part in chain] != [(number, len(chain)) for number in range(1, len(chain) + 1)]:
        raise BundleError(
            f"{name}: its graphs have no caches, so their names must say which part of how many each is: "
            f"{', '.join(part.graph for part in chain)}"
        )


def _check_heads(variant: Variant, name: str) -> None:
    """Every layer has the same heads of one size, for keys and for values, each in one tensor or all in one."""
    caches = cache_inputs(variant)
    for slot in caches:
        if _heads(slot) != _heads(caches[0]):
            raise BundleError(
                f"{name}: tensor {slot.name} has shape {list(slot.spec.shape)}, {caches[0].name} has "
                f"{list(caches[0].spec.shape)}: caches of several sizes are not supported"
            )
    found: dict[tuple[Role, int], set[int]] = {}
    for slot in caches:
        found.setdefault((slot.meaning.role, slot.meaning.layer), set()).add(slot.meaning.head)
    first = next(iter(found.values()), {-1})
    for (role, layer), heads in found.items():
        if heads != first or heads not in ({-1}, set(range(len(heads)))):
            raise BundleError(f"{name}: the {role.value} caches of layer {layer} are not one for each head, from 0 on")


def _check_alike(variants: Sequence[Variant]) -> None:
    """All variants read and write one pool, so every cache must look alike in all of them."""
    seen: dict[str, tuple[Slot, Variant]] = {}
    for variant in variants:
        if variant.is_scatter != variants[0].is_scatter:
            raise BundleError(
                f"variants {variants[0]} and {variant}: one has the input cache_index, the other has not, so their "
                "caches have different layouts"
            )
        slots = [slot for part in variant.body for slot in part.outputs if slot.meaning.layer >= 0]
        for slot in slots:
            first, where = seen.setdefault(slot.name, (slot, variant))
            if (first.spec.encoding, _heads(first)) != (slot.spec.encoding, _heads(slot)):
                raise BundleError(
                    f"tensor {slot.name} is {first.spec} in {where} and {slot.spec} in {variant}: "
                    "the variants cannot share a cache"
                )
        if {slot.name for slot in slots} != set(seen):
            raise BundleError(f"variant {variant} has other layers than {variants[0]}")
    kinds = {slot.spec.dtype for variant in variants for slot in cache_inputs(variant)}
    if len(kinds) > 1 and not variants[0].is_serial:
        raise BundleError(f"the caches have several types ({', '.join(sorted(kinds))}); one is expected")


def cache_inputs(variant: Variant) -> list[Slot]:
    """Past keys and values of all layers."""
    return [slot for part in variant.body for slot in part.inputs if slot.meaning.layer >= 0]


def _heads(slot: Slot) -> tuple[object, object]:
    if slot.meaning.role in STATES:
        return slot.spec.shape, None
    return slot.spec.shape[0], slot.spec.shape[2 if slot.meaning.role in (Role.KEY, Role.WINDOW_KEY) else 3]
