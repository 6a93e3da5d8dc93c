"""The scheduler: its queues and slots, the plan of the next step, and the commit of what the step gave."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from engine.bundle.specs import ForecastSpec
from engine.bundle.variant import ShapeTable, StepShape
from engine.core.checks import pool_violations, sequence_violations, sight_violations, window_violations
from engine.core.guesses import Guesser
from engine.core.kv_blocks import GONE, BlockKey, BlockPool, RecentKeys
from engine.core.kv_queues import PooledTurns, PoolQueues, Rows
from engine.core.plan import BlockMove, Freed, Gauges, Planner, Rules, Segment, SequenceUpdate, StepPlan, StepResult
from engine.core.policy import CostTable, Demand, Growth, Share, share_rows
from engine.core.prefixes import StateBorders, is_in_progress, pending_keys
from engine.core.rows import (
    Guesses,
    Wants,
    first_block,
    guessing,
    kv_only_rows,
    make_segment,
    pieces_of,
    plan_trees,
    prefills_of,
    take_predictions,
    take_rows,
    take_tokens,
    take_turns,
    without,
)
from engine.core.sequence import OutputLengthEstimate, Sequence, SequenceStatus, blocks_for
from engine.core.speculation import NO_PROPOSALS, Drafter, DraftRequest, PromptLookup
from engine.request import FinishReason, Request


class Scheduler(Planner):
    """Owns every sequence and every block. `plan` reserves slots and rows, `commit` takes in the tokens.
    forecasts: how the model guesses for itself, None if it does not. lookup: n-grams of other lengths than usual."""

    def __init__(
        self,
        shapes: ShapeTable,
        costs: CostTable,
        blocks: BlockPool,
        rules: Rules,
        forecasts: ForecastSpec | None = None,
        lookup: PromptLookup | None = None,
    ) -> None:
        super().__init__(costs, rules.capacity, blocks.block_size)
        self.shapes = shapes
        self.rules = rules
        self._guesser = Guesser(lookup or PromptLookup(), shapes, costs, rules, self.counters)
        self._forecasts = forecasts
        self.host_cache = RecentKeys(rules.offload_blocks)
        self._moves: list[BlockMove] = []  # due before the next step; the pool appends
        self.states = StateBorders(rules.is_recurrent, rules.state_snapshots, blocks.block_size)
        self._pool = PoolQueues(blocks, shapes, self.host_cache, self._moves, rules.window, rules.window_blocks)
        self._output_length = OutputLengthEstimate(rules.config.reserve_tokens, rules.capacity, self._pool.sight.held)
        self._turns = PooledTurns(rules.config.embed_rows, self._pool, shapes)
        self._waiting: dict[str, Sequence] = {}
        self._steps = 0

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        capacity, tokens = self.rules.capacity, [*request.prompt_ids, *emitted]
        limit = capacity.tokens_per_sequence if request.pooling is None else capacity.tokens_per_input + 1
        if not request.prompt_ids:
            raise ValueError("the prompt is empty")
        if len(tokens) >= limit:
            raise ValueError(f"{len(tokens)} tokens leave no room in a context of {limit}")
        if self.find(request.id) is not None:
            raise ValueError(f"request id {request.id} is in use")
        block = first_block(request, len(tokens), self.shapes.unit)
        order, resumed = next(self._arrivals), len(emitted)
        sequence = Sequence(request, order, seed, tokens, arrived_s=now_s, resumed=resumed, active_block=block)
        self._waiting[request.id] = sequence
        return sequence

    def computed_blocks(self, sequence_id: str) -> list[tuple[int, BlockKey]]:
        """Block and key of each full block that a sequence holds and that is computed; none for one that waits."""
        sequence, size = self.find(sequence_id), self.block_size
        if sequence is None or sequence.status is SequenceStatus.WAITING:
            return []
        sequence.extend_keys(sequence.computed // size * size, size)
        full = min(sequence.computed // size, len(sequence.keys))
        return list(zip(sequence.blocks[sequence.freed : full], sequence.keys[sequence.freed : full], strict=True))

    def find(self, sequence_id: str) -> Sequence | None:
        queues = (self._waiting, self._pool.prefill_queue, self._pool.decode_queue)
        return next((queue[sequence_id] for queue in queues if sequence_id in queue), None)

    @property
    def running(self) -> int:
        return self._pool.population

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) or self.running > 0

    @property
    def blocks(self) -> BlockPool:
        """Of the pool, for those who store what it holds, and for checks."""
        return self._pool.blocks

    def gauges(self) -> Gauges:
        used, total = (count * self.block_size for count in (self.blocks.referenced, self.blocks.block_count))
        return Gauges(self.running, len(self._waiting), used, total)

    def take_freed(self) -> Freed:
        return Freed(*self.states.take_forgotten(), *self._pool.take_freed())

    def violations(self) -> Iterator[str]:
        yield from pool_violations(self.blocks, self.sequences(), self._pool.reserved, self._pool.available())
        yield from sequence_violations(self.sequences(), self.block_size, self.capacity)
        yield from window_violations(self._pool.windows, tuple(self._pool.running()))
        yield from sight_violations(self._pool.sight, tuple(self._pool.running()))

    def sequences(self) -> tuple[Sequence, ...]:
        return (*self._waiting.values(), *self._pool.running())

    def draft_requests(self, drafter: Drafter, late: Collection[str] = ()) -> list[DraftRequest]:
        """What a draft model shall propose for the next step: nothing while prompts want its time. Changes no queue."""
        ready = without(self._pool.decode_queue, late) if drafter.most else []
        if not ready or self._pool.prefill_queue:
            return []
        share = self._share(Wants(ready))
        decodes = guessing(take_turns(ready, share.decodes))
        return self._guesser.requests(decodes, drafter, self._guesser.growth(decodes, share))

    def plan(
        self, late: Collection[str] = (), proposals: Mapping[str, tuple[int, ...]] = NO_PROPOSALS
    ) -> StepPlan | None:
        self._admit()
        pool = self._pool
        if not pool.prefill_queue and not without(pool.decode_queue, late):
            return None
        self._reserve_decode_slots()
        wants = self._wants(late)
        if not wants.ready and not pool.prefill_queue:  # the decoding sequences gave their slots back
            return None
        share = self._share(wants)
        pool.set_past(share.shape.past, share.regret_ms)
        is_kv_only = share.shape in self.shapes.prefill
        decodes = take_turns(wants.ready, share.decodes)
        prefills = take_rows(wants.kv_only if is_kv_only else wants.prompts, share.prefill_rows)
        pool.note_prefills(prefills, wants.kv_only if decodes else ())
        self._turns.count(prefills)
        shape, guesses = self._guess(guessing(decodes), share, wants, proposals)
        padding = shape.rows - share.useful - guesses.rows
        fillers = kv_only_rows(wants.texts_too) if is_kv_only else wants.texts_too
        prefills = self._turns.filled(prefills, fillers, padding)
        self._take_reserved(prefills)
        make = partial(make_segment, block_size=self.block_size, states=self.states)
        segments = [make(sequence, rows, (), None) for sequence, rows in prefills]
        segments += [make(s, rows, guesses.drafts.get(s.id, ()), guesses.trees.get(s.id)) for s, rows in decodes]
        return StepPlan(shape, tuple(segments), self.take_moves())

    def take_moves(self) -> tuple[BlockMove, ...]:
        """What is due before blocks are what they are said to be; the caller carries it out."""
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        self._steps += 1
        updates = []
        rows_used = plan.rows_used
        for segment in plan.segments:
            sequence = segment.sequence
            if sequence.is_finished:
                continue
            sequence.steps += 1
            sequence.step_rows += rows_used
            sequence.prompt_logprobs += result.prompt_logprobs.get(sequence.id, ())
            if sequence.active_block is None:
                tokens = None if sequence.id in result.deferred else result.tokens.get(sequence.id, ())
                update = take_tokens(segment, tokens, result.trees.get(sequence.id), self._guesser, self.rules)
            else:
                limit = self.rules.capacity.tokens_per_sequence
                update = take_predictions(segment, result.predicted.get(sequence.id, ()), limit)
            sequence.last_served = self._steps
            self._advance(segment, update.kept_rows)
            updates.append(update)
        return updates

    def drop(self, sequence: Sequence) -> None:
        self._finish(sequence, FinishReason.ABORT)

    def _admit(self) -> None:
        """Move waiting sequences into the pool by rank, up to one that must wait; who generates takes texts' slots."""
        if self._waiting:
            self._admit_waiting()
        for sequence in self._turns.in_the_way():
            self._preempt(sequence)

    def _admit_waiting(self) -> None:
        pending = pending_keys(self._pool.prefill_queue.values(), self.states)
        for sequence in sorted(self._waiting.values(), key=lambda s: s.rank):
            if self.running >= self.rules.config.max_running and not self._make_room(sequence):
                return
            rank = sequence.rank
            sequence.extend_keys(len(sequence.tokens), self.block_size)
            if self.rules.config.prefix_cache:
                keys = sequence.usable_keys(self.block_size)
                known = len(self.states.known(self._pool, keys))
                if is_in_progress(keys, known, rank, pending, self.states):
                    continue
            while not self._admit_one(sequence):
                if not self._make_room(sequence):
                    return
            for key in self.states.in_progress(sequence):
                pending.setdefault(key, rank)

    def _admit_one(self, sequence: Sequence) -> bool:
        pool, keys = self._pool, sequence.usable_keys(self.block_size) if self.rules.config.prefix_cache else []
        known = pool.shareable(sequence, self.states.known(pool, keys))
        shared = [block for block in known if block is not None and block != GONE]
        pool.blocks.acquire(shared)
        needed = pool.to_come(sequence, known.count(GONE), shared)
        # With fused graphs whoever runs has all the slots it will ever need.
        reserved = pool.reserved + self._output_length.reserved(sequence, () if self.shapes.slots else pool.running())
        available = pool.available(self._turns.newcomers(sequence)) if pool.admits(sequence) else 0
        if needed + reserved > available:
            pool.blocks.release(shared)
            return False
        self._start(sequence, pool.load(keys, known))
        return True

    def _make_room(self, newcomer: Sequence) -> bool:
        """Take the slots of the last pooled sequence, if the newcomer is none; False when none has any."""
        texts = [s for s in self._pool.running() if s.is_pooled and not newcomer.is_pooled]
        if texts:
            self._preempt(max(texts, key=lambda s: s.rank))
        return bool(texts)

    def _start(self, sequence: Sequence, blocks: list[int]) -> None:
        del self._waiting[sequence.id]
        self._pool.hand_over(sequence, blocks)
        self.states.start(sequence)
        if not sequence.preemptions:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
        if not sequence.preemptions and not sequence.resumed:  # who comes from another worker was counted there
            self.counters.prefix_queries += len(sequence.tokens)
            self.counters.prefix_hits += sequence.computed
        self._pool.enqueue(sequence)

    def _reserve_decode_slots(self) -> None:
        """Give every decoding sequence the slots its next rows need; if there are none the greatest rank gives way.
        Tokens that are known need a slot, those of a block that is denoised do not."""
        for sequence in sorted(self._pool.decode_queue.values(), key=lambda s: s.rank):
            while sequence.status is SequenceStatus.DECODE and not self._grow(sequence, sequence.final_tokens):
                self._preempt(max(self._pool.running(), key=lambda s: s.rank))

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        return self._pool.grow(sequence, blocks_for(min(tokens, self.rules.capacity.slots), self.block_size))

    def _preempt(self, sequence: Sequence) -> None:
        """Take the slots back; what was computed is prefilled again later, or found in the prefix cache."""
        self._pool.leave(sequence)
        self.states.end(sequence)
        sequence.move(SequenceStatus.WAITING)
        sequence.computed = sequence.registered = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting[sequence.id] = sequence

    def _wants(self, late: Collection[str]) -> Wants:
        ready = without(self._pool.decode_queue, late)
        every = prefills_of(self.shapes, self._pool.prefill_queue.values(), late, bool(ready))
        prompts = self._turns.bounded(every)
        return Wants(ready, prompts, kv_only_rows(prompts) if self.shapes.prefill else [], every)

    def _share(self, wants: Wants) -> Share:
        decodes, prompts = sum(each.rows_wanted for each in wants.ready), sum(rows for _, rows in wants.prompts)
        kv_only, prefill_first = sum(max(0, rows) for _, rows in wants.kv_only), self._pool.prefill_starved
        is_first, pieces = prefill_first or self._turns.is_due, pieces_of(wants.prompts)
        to_decode = [len(sequence.tokens) for sequence, _ in wants.prompts if not sequence.is_pooled]
        demand = Demand(decodes, prompts, is_first, kv_only, pieces, len(to_decode), sum(to_decode))
        return share_rows(self.shapes, self.costs, demand, self._pool.extent(), self.rules.config.max_gap_ms)

    def _guess(
        self, decodes: list[Sequence], share: Share, wants: Wants, proposals: Mapping[str, tuple[int, ...]]
    ) -> tuple[StepShape, Guesses]:
        """The guesses behind decodes, the trees of those that have none, and the shape that the step grows to."""
        growth = self._guesser.growth(decodes, share, sum(rows for _, rows in wants.prompts))
        drafts = self._draft(decodes, growth, proposals)
        rows = sum(map(len, drafts.values()))
        shape, others = growth.shape(rows), [sequence for sequence in decodes if sequence.id not in drafts]
        padding = shape.rows - share.useful - rows
        trees = plan_trees(self._forecasts, others, padding, shape.past, self.rules.capacity, self._grow)
        return shape, Guesses(drafts, trees)

    def _take_reserved(self, prefills: Rows) -> None:
        """Give prompts the slots of their next rows, which were reserved when they were let in."""
        for sequence, rows in prefills:
            is_reserved = self._grow(sequence, min(sequence.computed + rows, sequence.final_tokens))
            assert is_reserved, f"{sequence.id}: the blocks of its prompt were reserved for it"

    def _draft(
        self, decodes: list[Sequence], growth: Growth, proposals: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """The guesses that are worth their rows, of sequences that get slots for them."""
        taken = self._guesser.take(decodes, proposals, growth)
        return {
            sequence.id: guess
            for sequence in decodes
            if (guess := taken.get(sequence.id, ())) and self._grow(sequence, sequence.computed + 1 + len(guess))
        }

    def _advance(self, segment: Segment, kept_rows: int) -> None:
        """So many more of its tokens are computed; it ends, or goes on in the queue where it belongs now."""
        sequence = segment.sequence
        sequence.computed += kept_rows
        self._pool.advance(sequence, self.rules.config.prefix_cache)
        self.states.commit(segment, kept_rows)
        if sequence.finish is not None:
            self._finish(sequence, sequence.finish)
        elif sequence.status is SequenceStatus.PREFILL and sequence.rows_wanted <= sequence.decode_rows:
            del self._pool.prefill_queue[sequence.id]
            self._pool.enqueue(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish = reason
        self._output_length.observe(sequence.generated)
        self.states.end(sequence)
        if sequence.status is SequenceStatus.WAITING:
            del self._waiting[sequence.id]
        else:
            self._pool.leave(sequence)
        sequence.move(SequenceStatus.FINISHED)
