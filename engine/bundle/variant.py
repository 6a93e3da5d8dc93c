"""The shapes a bundle can run, and which of them fits. Pure arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.bundle.encoder import encoder_rows
from engine.bundle.fused import fused_shapes
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.errors import BundleError

FREE_PAST_STEP = 64


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """One runnable shape: `rows` fresh tokens (AR) beside `past` cached columns (P); the key axis is their sum (CL)."""

    rows: int
    past: int

    @property
    def context(self) -> int:
        return self.rows + self.past

    def __str__(self) -> str:
        return f"ar{self.rows}_cl{self.context}"


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Either the fixed shapes of a bundle, or `free`: any rows up to max_rows and any past up to max_past. A free past
    is rounded up so that buffers are not re-laid for every token: to `past_step` columns, and above 1,024 to a 16th of
    the next power of two, so that no more than an eighth of it is unused. unit: rows are shared out in multiples of it.
    recomputes: steps compute sequences whole, so that guesses cost next to nothing."""

    fixed: tuple[StepShape, ...]
    max_rows: int
    max_past: int
    past_step: int = FREE_PAST_STEP
    prefill: tuple[StepShape, ...] = ()  # further fixed shapes, whose graphs give keys and values and no logits
    segmented: bool = False  # each sequence has a cache; the past of a step is the columns its rows read together
    slots: int = 0  # of fused graphs, most decodes of a step beside one prompt; 0 = any row may be anybody's
    unit: int = field(default=1, repr=False)  # no step takes longer for it
    image_rows: int = field(default=0, repr=False)  # of an image that lies in one step, 0 = none
    longest_text: int = field(default=0, repr=False)  # of encoders, 0 = there is a cache
    recomputes: bool = field(default=False, repr=False)  # steps of such shapes are not timed

    @property
    def free(self) -> bool:
        """True when no fixed shapes are listed."""
        return not self.fixed

    @property
    def has_one_shape(self) -> bool:
        """Whether every step has the same shape: then how a row is computed depends on no other."""
        return len(self.fixed) == 1

    def round_past(self, columns: int) -> int:
        """Smallest past that a step over `columns` cached columns can use; 0 columns still take one step."""
        if not self.free:
            return min((shape.past for shape in self.fixed if shape.past >= columns), default=self.max_past)
        step = max(self.past_step, (1 << max(0, columns - 1).bit_length()) // 16)
        return min(self.max_past, max(1, -(-columns // step)) * step)

    def reach(self, sequences: int) -> int:
        """Columns that so many sequences may share: as far as a variant goes that has `unit` rows for each, else one of
        most rows. Variants of less than half the widest past do not count: rows are not worth half of a pool."""
        if self.free:
            return self.max_past
        wide = [shape for shape in self.fixed if 2 * shape.past >= self.max_past]
        rows = min(sequences * self.unit, max(shape.rows for shape in wide))
        return max(shape.past for shape in wide if shape.rows >= rows)

    def candidates(self, columns: int) -> tuple[StepShape, ...]:
        """Fixed shapes able to hold `columns`, fewest rows first and, for equal rows, the narrowest past only."""
        return _narrowest(self.fixed, columns)

    def prefill_candidates(self, columns: int) -> tuple[StepShape, ...]:
        """The same of the shapes without logits."""
        return _narrowest(self.prefill, columns)


def _narrowest(shapes: Iterable[StepShape], columns: int) -> tuple[StepShape, ...]:
    found: dict[int, StepShape] = {}
    for shape in sorted(shapes):
        if shape.past >= columns:
            found.setdefault(shape.rows, shape)
    return tuple(found.values())


def shape_of(graph: GraphSpec) -> StepShape | None:
    """The fixed shape of a graph, None when it is free."""
    if graph.rows is None or graph.context is None:
        return None
    return StepShape(graph.rows, graph.context - graph.rows)


def shape_table(manifest: Manifest, max_rows: int) -> ShapeTable:
    """Shapes of a bundle; BundleError when it has none. `max_rows` bounds a free-shape step."""
    if manifest.encoder is not None:
        texts = tuple(StepShape(rows, 0) for rows in encoder_rows(manifest))
        return ShapeTable(texts, texts[-1].rows, 0, longest_text=manifest.max_context)
    if manifest.speech is not None:
        return ShapeTable((), max_rows, manifest.max_context, segmented=True)
    spec = manifest.fused
    if spec is not None and manifest.diffusion is not None:
        raise BundleError("fused graphs decode one token of a sequence a step, so they cannot denoise blocks")
    if spec is not None:
        return slot_table([shape.rows for shape in fused_shapes(spec)], spec.past, spec.decode_slots)
    shapes = _every_shape(manifest, max_rows)
    if manifest.vision is not None and manifest.vision.both_ways:
        return _of_images(shapes, manifest.vision.tokens)
    return shapes if manifest.diffusion is None else _of_blocks(shapes, manifest.diffusion.block_length)


def _of_images(shapes: ShapeTable, tokens: int) -> ShapeTable:
    """The same for images that are not cut, with no more past than a step of one has."""
    wide = _with_rows(shapes, tokens, "an image of this model takes {} rows of one step", "an image")
    return replace(shapes, max_past=max((shape.past for shape in wide), default=shapes.max_past), image_rows=tokens)


def _of_blocks(shapes: ShapeTable, block_length: int) -> ShapeTable:
    fixed = _with_rows(shapes, block_length, "a block of this model takes {} rows", "a block")
    widest = max((shape.past for shape in fixed), default=shapes.max_past)
    prefill = tuple(shape for shape in shapes.prefill if shape.rows >= block_length)
    return replace(shapes, fixed=fixed, max_past=widest, prefill=prefill, unit=block_length)


def _with_rows(shapes: ShapeTable, rows: int, needed: str, what: str) -> tuple[StepShape, ...]:
    """The fixed shapes that have so many rows; BundleError when no step has them."""
    if shapes.free and shapes.max_rows < rows:
        raise BundleError(f"max_rows is {shapes.max_rows}, {needed.format(rows)}")
    fixed = tuple(shape for shape in shapes.fixed if shape.rows >= rows)
    if not shapes.free and not fixed:
        most = shapes.max_rows
        raise BundleError(f"no variant has the {rows} rows of {what}, the most is {most}: compile more --rows")
    return fixed


def _every_shape(manifest: Manifest, max_rows: int) -> ShapeTable:
    kinds = (GraphKind.DECODER, GraphKind.DEFAULT, GraphKind.ATTENTION)
    layers = [graph for graph in manifest.graphs if graph.kind in kinds]
    if not layers:
        raise BundleError("the bundle has no decoder graph")
    shapes = {shape_of(graph) for graph in layers}
    fixed = tuple(sorted(shape for shape in shapes if shape is not None))
    kv_only = {shape_of(graph) for graph in manifest.graphs if graph.kind is GraphKind.DECODER_PREFILL}
    prefill = tuple(sorted(shape for shape in kv_only - shapes if shape is not None))
    if None in shapes and fixed:
        raise BundleError("the bundle mixes free and fixed graphs")
    if manifest.reads_whole_context:  # which of their rows a step brings is free: the others are computed all the same
        return ShapeTable((), max_rows, manifest.max_context, segmented=True, recomputes=True)
    if fixed and manifest.is_serial:  # a step takes a run for each sequence
        return ShapeTable((), min(max_rows, max(s.rows for s in fixed)), manifest.max_context, segmented=True)
    if fixed:
        return ShapeTable(fixed, max(s.rows for s in fixed), max(s.past for s in fixed), prefill=prefill)
    most = -(-manifest.max_context // FREE_PAST_STEP) * FREE_PAST_STEP
    return ShapeTable((), max_rows, most, segmented=manifest.is_segmented)


def slot_table(rows: Iterable[int], past: int, slots: int) -> ShapeTable:
    """Shapes of fused graphs of so many rows. Every sequence has a cache of its own, and all graphs the same past."""
    fixed = tuple(StepShape(count, past) for count in sorted(rows))
    return ShapeTable(fixed, fixed[-1].rows, past, segmented=True, slots=slots)


def pin(shapes: ShapeTable, rows: int) -> ShapeTable:
    """One shape for every step: the fewest rows >= `rows`, `unit` and those of an image (else the most) at the widest
    past they have. Shapes of equal context have the wider past the fewer rows they have: rows are worth more."""
    rows = max(rows, shapes.unit, shapes.image_rows)
    if shapes.free:
        only = StepShape(min(rows, shapes.max_rows), shapes.max_past)
    else:
        whole = [shape for shape in shapes.fixed if shape.rows >= shapes.image_rows]
        widest = max(shape.past for shape in whole)
        wide = [shape for shape in whole if 2 * shape.past >= widest]
        wanted = min(rows, max(shape.rows for shape in wide))
        fitting = [shape for shape in wide if shape.rows >= wanted]
        only = min(fitting, key=lambda shape: (-shape.past, shape.rows))
    return ShapeTable((only,), only.rows, only.past, segmented=shapes.segmented, slots=shapes.slots, unit=shapes.unit)
