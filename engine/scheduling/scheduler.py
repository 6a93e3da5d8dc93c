"""The scheduler: its queues and columns, the plan of the next pass, and the commit of what the pass gave."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from engine.bundle.variant import ShapeTable
from engine.cache.host_cache import HostCache
from engine.cache.pages import PagePool
from engine.messages import Counters
from engine.modes.forecast_tree import ForecastShape, TreeOutcome
from engine.modes.mode import Mode
from engine.modes.unmasking import Prediction
from engine.request import FinishReason, Request
from engine.scheduling.admission import fits_now, pages_for
from engine.scheduling.block_rows import first_block, take_predictions
from engine.scheduling.coming import is_coming, pending_keys
from engine.scheduling.costs import CostTable
from engine.scheduling.forecasts import plan_trees
from engine.scheduling.growth import Growth
from engine.scheduling.guesses import Guesser
from engine.scheduling.output_length import OutputLengthEstimate
from engine.scheduling.plan import MoveKind, PageMove, Segment, SequenceUpdate, StepPlan
from engine.scheduling.policy import Demand, Share, share_rows
from engine.scheduling.pool_queues import PoolQueues
from engine.scheduling.pooled_turns import PooledTurns
from engine.scheduling.queues import guessing, kv_only_rows, rows_of, take_rows, take_turns, without
from engine.scheduling.rules import Rules
from engine.scheduling.segments import make_segment
from engine.scheduling.sequence import Sequence, SequenceStatus
from engine.scheduling.slots import prefills_of
from engine.scheduling.state_borders import StateBorders
from engine.scheduling.updates import take_tokens
from engine.speculation.drafter import NO_PROPOSALS, Drafter, DraftWish

Openings = Iterable[tuple[Sequence, int]]  # prompts, and how many rows of each a pass may compute
NO_TREES: Mapping[str, TreeOutcome] = MappingProxyType({})


class Scheduler:
    """Owns every sequence and every page. `plan` reserves columns and rows, `commit` takes in the tokens.

    forecasts: how the model guesses for itself, None if it does not.
    """

    def __init__(
        self,
        shapes: ShapeTable,
        costs: CostTable,
        pools: list[PagePool],
        mode: Mode,
        rules: Rules,
        forecasts: ForecastShape | None = None,
    ) -> None:
        self.shapes = shapes
        self.costs = costs
        self.rules = rules
        self.counters = Counters()  # of admission, preemption and guesses; the others are the loop's
        self._mode = mode
        self._guesser = Guesser(mode, shapes, costs, rules, self.counters)
        self._forecasts = forecasts
        self._output_length = OutputLengthEstimate(rules.reserve_tokens, rules.capacity, pools[0].page_columns)
        self.host_cache = HostCache(rules.offload_pages)
        self._moves: list[PageMove] = []  # due before the next pass; the pools append
        self.states = StateBorders(rules.is_recurrent, rules.state_snapshots, pools[0].page_columns)
        self._pools = [
            PoolQueues(index, pages, shapes, self.host_cache, self._moves) for index, pages in enumerate(pools)
        ]
        self._turns = PooledTurns(rules.pooled_rows, self._pools, shapes)
        self._waiting: dict[str, Sequence] = {}
        self._passes = 0
        self._arrivals = 0

    # -- what comes in ------------------------------------------------------------------------------------------

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        """Queue a request. ValueError with the numbers when it can never fit."""
        capacity, tokens = self.rules.capacity, [*request.prompt_ids, *emitted]
        limit = capacity.tokens_per_sequence if request.pooling is None else capacity.tokens_per_input + 1
        if not request.prompt_ids:
            raise ValueError("the prompt is empty")
        if len(tokens) >= limit:
            raise ValueError(f"{len(tokens)} tokens leave no room in a context of {limit}")
        if self.find(request.id) is not None:
            raise ValueError(f"request id {request.id} is in use")
        block = first_block(request, len(tokens), self.shapes.unit)
        sequence = Sequence(request, self._arrivals, seed, tokens, arrived_s=now_s, resumed=len(emitted), block=block)
        self._arrivals += 1
        self._waiting[request.id] = sequence
        return sequence

    def abort(self, sequence_id: str) -> Sequence | None:
        """Forget a request and free its columns; None if it is not here."""
        sequence = self.find(sequence_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)
        return sequence

    def rewind(self, sequence_id: str, generated: int) -> None:
        """Let a live sequence go back to its first `generated` tokens. ValueError when it cannot, or is not here."""
        sequence = self.find(sequence_id)
        if sequence is None:
            raise ValueError(f"there is no live sequence {sequence_id}")
        pool = self._pools[sequence.pool]
        if not pool.rewind(sequence, generated) or (self.rules.is_recurrent and sequence.pages):
            self._preempt(pool, sequence)

    def clear_cache(self) -> None:
        """Forget every prefix that no running sequence uses, in the pools and in the host cache."""
        for pool in self._pools:
            pool.pages.trim(0)
        self.states.clear()
        self._moves.extend(PageMove(MoveKind.EVICT, key) for key in self.host_cache.clear())

    def find(self, sequence_id: str) -> Sequence | None:
        """The unfinished sequence of an id, for callers outside a step; a plan's segments carry theirs."""
        if sequence_id in self._waiting:
            return self._waiting[sequence_id]
        for pool in self._pools:
            found = pool.prefill_queue.get(sequence_id) or pool.decode_queue.get(sequence_id)
            if found is not None:
                return found
        return None

    # -- what is there ------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Sequences without columns."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences with columns."""
        return sum(pool.population for pool in self._pools)

    @property
    def has_work(self) -> bool:
        """Whether `plan` would find something."""
        return bool(self._waiting) or self.running > 0

    @property
    def pools(self) -> tuple[PagePool, ...]:
        """The page pools, for gauges and checks."""
        return tuple(pool.pages for pool in self._pools)

    def reservations(self) -> tuple[tuple[int, int], ...]:
        """For each pool the pages that prompts under way will still take, and those that are there; for checks."""
        return tuple((pool.reserved, pool.available()) for pool in self._pools)

    def sequences(self) -> tuple[Sequence, ...]:
        """All unfinished sequences, for checks."""
        return (*self._waiting.values(), *(s for pool in self._pools for s in pool.running()))

    # -- one step -----------------------------------------------------------------------------------------------

    def draft_wishes(self, drafter: Drafter, held: Collection[str] = ()) -> list[DraftWish]:
        """What a draft model shall propose for the next pass: nothing while prompts want its time. Changes no queue."""
        pool = self._next_pool(held) if drafter.most else None
        ready = without(pool.decode_queue, held) if pool is not None else []
        if pool is None or not ready or pool.prefill_queue:
            return []
        share = self._share(pool, rows_of(ready), (), ())
        decodes = guessing(take_turns(ready, share.decodes))
        return self._guesser.wishes(decodes, drafter, self._guesser.growth(decodes, share))

    def plan(
        self, held: Collection[str] = (), proposals: Mapping[str, tuple[int, ...]] = NO_PROPOSALS
    ) -> StepPlan | None:
        """Decide the next pass; None when no sequence can run.

        held: ids of sequences whose next token cannot be sampled now; of a prompt all but the last token is computed.
        proposals: guesses of a draft model, by sequence id.
        """
        self._admit()
        pool = self._next_pool(held)
        if pool is None:
            return None
        self._reserve_decode_columns(pool)
        ready = without(pool.decode_queue, held)
        if not ready and not pool.prefill_queue:  # the decoding sequences gave their columns back
            return None
        wanted = prefills_of(self.shapes, pool.prefill_queue.values(), held, bool(ready))
        open_prefills = self._turns.bounded(pool, wanted)
        kv_only = kv_only_rows(open_prefills) if self.shapes.prefill else []
        share = self._share(pool, rows_of(ready), open_prefills, kv_only)
        pool.set_past(share.shape.past, share.forgone_ms)
        is_kv_only = share.shape in self.shapes.prefill
        prefills = take_rows(kv_only if is_kv_only else open_prefills, share.prefill_rows)
        decodes = take_turns(ready, share.decodes)
        pool.note_prefills(prefills, kv_only if decodes else ())
        self._turns.count(pool, prefills)
        growth = self._guesser.growth(guessing(decodes), share, sum(rows for _, rows in open_prefills))
        drafts = self._draft(pool, guessing(decodes), growth, proposals)
        guesses = sum(map(len, drafts.values()))
        shape, others = growth.shape(guesses), [s for s in guessing(decodes) if s.id not in drafts]
        spare = shape.rows - share.useful - guesses
        trees = plan_trees(self._forecasts, others, spare, shape.past, self.rules.capacity, partial(self._grow, pool))
        spare -= sum(len(tree.tokens) - 1 for tree in trees.values())
        prefills = self._turns.filled(prefills, kv_only_rows(wanted) if is_kv_only else wanted, spare)
        for sequence, rows in prefills:
            reserved = self._grow(pool, sequence, min(sequence.computed + rows, sequence.settled_tokens))
            assert reserved, f"{sequence.id}: the pages of its prompt were reserved for it"
        size = pool.pages.page_columns
        segments = [make_segment(sequence, rows, (), None, size, self.states) for sequence, rows in prefills]
        segments += [
            make_segment(s, rows, drafts.get(s.id, ()), trees.get(s.id), size, self.states) for s, rows in decodes
        ]
        return StepPlan(shape, pool.index, tuple(segments), self.take_moves())

    def take_moves(self) -> tuple[PageMove, ...]:
        """What is due before pages are what they are said to be; the caller carries it out."""
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def commit(
        self,
        plan: StepPlan,
        sampled: Mapping[str, tuple[int, ...]],
        deferred: Collection[str] = (),
        predicted: Mapping[str, tuple[Prediction, ...]] = MappingProxyType({}),
        trees: Mapping[str, TreeOutcome] = NO_TREES,
    ) -> list[SequenceUpdate]:
        """Take in what was sampled for a plan: by id, a token for each sampled row. Ends what is finished.

        predicted: by id, what a pass says of each masked token of the block that a sequence denoises.
        trees: by id what came of a tree; its sequence's tokens are those behind the accepted nodes.
        deferred: ids of sequences that were not sampled; their logit rows are computed again in a later pass.
        Sequences that were dropped since the plan was made (aborted, or lost in the pass) get no update.
        """
        self._passes += 1
        self._pools[plan.pool].last_pass = self._passes
        updates = []
        rows_used = plan.rows_used
        for segment in plan.segments:
            sequence = segment.sequence
            if sequence.is_finished:
                continue
            sequence.passes += 1
            sequence.pass_rows += rows_used
            tokens = None if sequence.id in deferred else sampled.get(sequence.id, ())
            if sequence.block is None:
                update = take_tokens(segment, tokens, trees.get(sequence.id), self._mode, self._guesser, self.rules)
            else:
                limit = self.rules.capacity.tokens_per_sequence
                update = take_predictions(segment, predicted.get(sequence.id, ()), limit)
            sequence.last_served = self._passes
            self._advance(segment, update.kept_rows)
            updates.append(update)
        return updates

    def fail(self, plan: StepPlan) -> list[Sequence]:
        """The pass failed: drop the sequences it carried."""
        lost = [segment.sequence for segment in plan.segments if not segment.sequence.is_finished]
        for sequence in lost:
            self._finish(sequence, FinishReason.ABORT)
        return lost

    def drop(self, sequence: Sequence) -> None:
        """The pass has spoiled this sequence: end it and free its columns."""
        self._finish(sequence, FinishReason.ABORT)

    # -- admission ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Move waiting sequences into pools, in order of rank; stop at the first that must wait for columns.

        What generates takes them from what is pooled.
        """
        self._admit_waiting()
        for pool, sequence in self._turns.in_the_way():
            self._preempt(pool, sequence)

    def _admit_waiting(self) -> None:
        pending = pending_keys(self._pools, self.states)
        for sequence in sorted(self._waiting.values(), key=lambda s: s.rank):
            if self.running >= self.rules.max_running and not self._make_room(sequence):
                return
            page_columns, rank = self._pools[0].pages.page_columns, sequence.rank
            sequence.extend_keys(len(sequence.tokens), page_columns)
            keys = sequence.usable_keys(page_columns)
            if self.rules.prefix_cache and is_coming(keys, rank, self._pools, pending, self.states):
                continue
            while not self._admit_one(sequence):
                if not self._make_room(sequence):
                    return
            for key in self.states.coming(sequence):
                pending.setdefault(key, rank)

    def _admit_one(self, sequence: Sequence) -> bool:
        keys = sequence.usable_keys(self._pools[0].pages.page_columns) if self.rules.prefix_cache else []
        for pool in sorted(
            self._pools, key=lambda p: (-len(self.states.known(p, keys)), self._turns.order(p, sequence))
        ):
            known = self.states.known(pool, keys)
            known = known[: sequence.shareable_pages(len(known), pool.pages.page_columns)]
            shared = [page for page in known if page is not None]
            pool.pages.acquire(shared)
            needed = pages_for(len(sequence.tokens), pool.pages.page_columns) - len(shared)
            # With fused graphs whoever runs has all the columns it will ever need.
            growing = () if self.shapes.slots else pool.running()
            reserved = pool.reserved + self._output_length.reserved(sequence, growing)
            if not fits_now(needed, pool.available(self._turns.newcomers(pool, sequence)), reserved):
                pool.pages.release(shared)
                continue
            self._start(sequence, pool, pool.load(keys, known))
            return True
        return False

    def _make_room(self, newcomer: Sequence) -> bool:
        """Take the columns of the last pooled sequence, if the newcomer is none; False when none has any."""
        texts = [s for pool in self._pools for s in pool.running() if s.is_pooled and not newcomer.is_pooled]
        if texts:
            last = max(texts, key=lambda s: s.rank)
            self._preempt(self._pools[last.pool], last)
        return bool(texts)

    def _start(self, sequence: Sequence, pool: PoolQueues, pages: list[int]) -> None:
        """Let a sequence in; `pages` hold what is computed of its beginning."""
        del self._waiting[sequence.id]
        pool.hand_over(sequence, pages)
        self.states.start(sequence)
        if not sequence.preemptions:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            self.counters.prefix_queries += len(sequence.tokens)
            self.counters.prefix_hits += sequence.computed
        pool.enqueue(sequence)

    # -- the parts of plan --------------------------------------------------------------------------------------

    def _next_pool(self, held: Collection[str]) -> PoolQueues | None:
        busy = [pool for pool in self._pools if pool.prefill_queue or without(pool.decode_queue, held)]
        return min(self._turns.first(busy), key=lambda pool: pool.last_pass, default=None)

    def _reserve_decode_columns(self, pool: PoolQueues) -> None:
        """Give every decoding sequence the columns its next rows need; if there are none the greatest rank gives way.

        Tokens that are known need a column, those of a block that is denoised do not.
        """
        for sequence in sorted(pool.decode_queue.values(), key=lambda s: s.rank):
            while sequence.status is SequenceStatus.DECODE and not self._grow(pool, sequence, sequence.settled_tokens):
                self._preempt(pool, max(pool.running(), key=lambda s: s.rank))

    def _grow(self, pool: PoolQueues, sequence: Sequence, tokens: int) -> bool:
        return pool.grow(sequence, pages_for(min(tokens, self.rules.capacity.columns), pool.pages.page_columns))

    def _preempt(self, pool: PoolQueues, sequence: Sequence) -> None:
        """Take the columns back; what was computed is prefilled again later, or found in the prefix cache."""
        pool.leave(sequence)
        self.states.end(sequence)
        sequence.move(SequenceStatus.WAITING)
        sequence.computed = sequence.registered = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting[sequence.id] = sequence

    def _share(self, pool: PoolQueues, decodes: int, open_prefills: Openings, kv_only: Openings) -> Share:
        rows, before_logits = sum(rows for _, rows in open_prefills), sum(max(0, rows) for _, rows in kv_only)
        demand = Demand(decodes, rows, pool.prefill_starved or self._turns.is_due(pool), before_logits)
        return share_rows(self.shapes, self.costs, demand, pool.extent(), self.rules.max_gap_ms)

    def _draft(
        self, pool: PoolQueues, decodes: list[Sequence], growth: Growth, proposals: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """The guesses that are worth their rows, of sequences that get columns for them."""
        taken = self._guesser.take(decodes, proposals, growth)
        return {
            sequence.id: guess
            for sequence in decodes
            if (guess := taken.get(sequence.id, ())) and self._grow(pool, sequence, sequence.computed + 1 + len(guess))
        }

    # -- the parts of commit ------------------------------------------------------------------------------------

    def _advance(self, segment: Segment, kept_rows: int) -> None:
        """So many more of its tokens are computed; it ends, or goes on in the queue where it belongs now."""
        sequence = segment.sequence
        sequence.computed += kept_rows
        pool = self._pools[sequence.pool]
        if self.rules.prefix_cache:
            pool.register(sequence)
        self.states.commit(segment, kept_rows)
        if sequence.finish is not None:
            self._finish(sequence, sequence.finish)
        elif sequence.status is SequenceStatus.PREFILL and sequence.rows_wanted <= sequence.decode_rows:
            del pool.prefill_queue[sequence.id]
            pool.enqueue(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish = reason
        self._output_length.observe(sequence.generated)
        self.states.end(sequence)
        if sequence.status is SequenceStatus.WAITING:
            del self._waiting[sequence.id]
        else:
            self._pools[sequence.pool].leave(sequence)
        sequence.move(SequenceStatus.FINISHED)
