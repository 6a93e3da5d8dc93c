"""The guesses of a step: what each source offers, which of it is taken, and how it fared."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

from engine.bundle.variant import ShapeTable
from engine.core.plan import FORESEEN_TOKENS, Rules
from engine.core.policy import CostTable, Growth, Share
from engine.core.sequence import Sequence, room
from engine.core.speculation import (
    FIRST_RATES,
    KIND_DECAY,
    TRIAL_GUESSES,
    TRIAL_RATE,
    Acceptance,
    Drafter,
    DraftRequest,
    GuessKind,
    KindRecord,
    Offer,
    PromptLookup,
    StepPrice,
    continued_at,
    draft_length,
    least_rate,
    take,
    worths,
)
from engine.messages import Counters

MANY = 16  # rows of guesses, to see what one of many costs

# Names of the counters of each kind: guesses in rows of a step, and those of them that were right.
COUNTED: Mapping[GuessKind, tuple[str, str]] = {kind: (f"{kind}_rows", f"{kind}_accepted") for kind in GuessKind}


class Guesser:
    """Knows how often guesses were right, of all sequences; of one, its sequence knows. Counts into `counters`."""

    def __init__(
        self, lookup: PromptLookup, shapes: ShapeTable, costs: CostTable, rules: Rules, counters: Counters
    ) -> None:
        self._lookup = lookup
        self._shapes = shapes
        self._costs = costs
        self._rules = rules
        self._counters = counters
        self._kinds = {kind: Acceptance(KIND_DECAY) for kind in GuessKind}

    def growth(self, decodes: Several[Sequence], share: Share, prompt_rows: int = 0) -> Growth:
        """How far a step may grow for guesses. prompt_rows: rows that prompts want; those not in `share` wait."""
        past = sum(sequence.computed for sequence in decodes) // max(1, len(decodes))
        is_bounded = prompt_rows > share.prefill_rows
        return Growth(self._shapes, self._costs, share, past, self._rules.config.max_gap_ms, is_bounded)

    def take(
        self, decodes: Several[Sequence], proposals: Mapping[str, tuple[int, ...]], growth: Growth
    ) -> dict[str, tuple[int, ...]]:
        """The guesses that a step takes, by sequence id. proposals: a draft model's."""
        if not decodes or not growth.most(1):
            return {}
        least = least_rate(growth.useful, growth.most(MANY), growth.milliseconds)
        by_id = {sequence.id: sequence for sequence in decodes}
        offers = [offer for s in decodes if (offer := self._best_offer(s, proposals.get(s.id, ()), least)) is not None]
        if not offers:
            return {}
        most = growth.most(sum(len(offer.tokens) for offer in offers))
        counts = take(offers, growth.useful, most, growth.milliseconds)
        due = [
            place
            for place, (offer, count) in enumerate(zip(offers, counts, strict=True))
            if not count and _record(by_id[offer.sequence_id], offer.kind).retries.is_due
        ]
        for place in due:
            tokens, rate = offers[place].tokens[:TRIAL_GUESSES], max(offers[place].rate, TRIAL_RATE)
            offers[place] = replace(offers[place], tokens=tokens, rate=rate)
        if due:
            counts = take(offers, growth.useful, most, growth.milliseconds)
        for offer, count in zip(offers, counts, strict=True):
            sequence = by_id[offer.sequence_id]
            sequence.guesses.taken = offer.kind
            if not count:
                _record(sequence, offer.kind).retries.step_over()
        return {o.sequence_id: o.tokens[:count] for o, count in zip(offers, counts, strict=True) if count}

    def requests(self, sequences: Several[Sequence], drafter: Drafter, growth: Growth) -> list[DraftRequest]:
        """What a draft model shall propose before the step that serves these sequences; nothing where it does not pay.
        A sequence whose own tokens or prediction are worth more goes without."""
        least = least_rate(growth.useful, growth.most(MANY), growth.milliseconds)
        own = {s.id: offer for s in sequences if (offer := self._best_offer(s, (), least)) is not None}
        drafting = [
            _Drafted(sequence, backlog, most)
            for sequence in sequences
            if not sequence.request.prompt_embeds  # a prompt that has no tokens cannot be read by another model
            and (most := min(drafter.reach(len(sequence.tokens)), self._room(sequence))) > 0
            and (backlog := drafter.backlog(sequence.id, sequence.tokens)) is not None
            and self._is_better(sequence, most, own.get(sequence.id))
        ]
        count = self._draft_length(drafting, own, drafter, growth) if drafting else 0
        if not count:
            for each in drafting:
                _record(each.sequence, GuessKind.DRAFT).retries.step_over()
            return []
        return [
            DraftRequest(each.sequence.request, each.sequence.seed, each.sequence.tokens, min(count, each.most))
            for each in drafting
        ]

    def judge(self, sequence: Sequence, drafted: int, right: int, kept: int) -> None:
        """Count guesses of a step. right: that the sampler chose as well; kept: of them, before the sequence ended."""
        kind, record = sequence.guesses.taken, sequence.guesses
        for acceptance in (self._kinds[kind], record.kinds[kind].acceptance):
            acceptance.observe(right, right < drafted)
        record.kinds[kind].retries.tried(right)
        sequence.drafted += drafted
        sequence.accepted += kept
        self._counters.drafted_rows += drafted
        self._counters.accepted_rows += kept
        for name, count in zip(COUNTED[kind], (drafted, kept), strict=True):
            setattr(self._counters, name, getattr(self._counters, name) + count)

    def _best_offer(self, sequence: Sequence, proposal: tuple[int, ...], least: float) -> Offer | None:
        """The offer worth most: a proposal, what follows in the prediction, or what followed the same words before.
        least: rate from which a guess can pay at all; below it nothing is looked up, which takes a while."""
        limit = self._room(sequence)
        found = [self._offer(sequence, GuessKind.DRAFT, proposal[: max(0, limit)])]
        if sequence.request.prediction and limit > 0:
            found.append(self._offer(sequence, GuessKind.PREDICTION, self._predicted(sequence, limit)))
        if self._rules.config.lookup_rows > 0 and limit > 0 and self._may_pay(sequence, GuessKind.LOOKUP, least):
            tokens = self._lookup.propose(sequence.tokens, min(self._rules.config.lookup_rows, limit))
            found.append(self._offer(sequence, GuessKind.LOOKUP, tokens))
        return max((offer for offer in found if offer.tokens), key=lambda offer: offer.worth, default=None)

    def _may_pay(self, sequence: Sequence, kind: GuessKind, least: float) -> bool:
        retries = _record(sequence, kind).retries
        may_pay = self._rate(sequence, kind) > least or (retries.is_due and least < TRIAL_RATE)
        if not may_pay:
            retries.step_over()
        return may_pay

    def _offer(self, sequence: Sequence, kind: GuessKind, tokens: tuple[int, ...]) -> Offer:
        return Offer(sequence.id, kind, tokens, self._rate(sequence, kind))

    def _predicted(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        prediction, record = sequence.request.prediction, sequence.guesses
        found = continued_at(prediction, sequence.tokens[sequence.prompt_tokens :], record.prediction_at)
        if found is None:
            return ()
        record.prediction_at = found
        return prediction[found : found + min(limit, self._rules.config.prediction_rows)]

    def _room(self, sequence: Sequence) -> int:
        """Guesses that a sequence may still take: its last token is never one."""
        return room(sequence, self._rules.capacity) - 1

    def _rate(self, sequence: Sequence, kind: GuessKind) -> float:
        return _record(sequence, kind).acceptance.rate(prior=self._kinds[kind].rate(FIRST_RATES[kind]))

    def _is_better(self, sequence: Sequence, most: int, own: Offer | None) -> bool:
        """Whether `most` tokens of a draft model are expected to give more than what the sequence has itself."""
        is_due = _record(sequence, GuessKind.DRAFT).retries.is_due
        rate = max(self._rate(sequence, GuessKind.DRAFT), TRIAL_RATE if is_due else 0.0)
        return sum(worths(rate, most)) > (own.worth if own is not None else 0.0)

    def _draft_length(
        self, drafting: Several["_Drafted"], own: Mapping[str, Offer], drafter: Drafter, growth: Growth
    ) -> int:
        """Tokens to propose for each, 0 = it does not pay; where it did not for a while, few are tried again."""
        names = {each.sequence.id for each in drafting}
        instead, beside = ([own[name] for name in own if (name in names) == is_in] for is_in in (True, False))
        most = growth.most(sum(each.most for each in drafting) + sum(len(offer.tokens) for offer in beside))

        def length(rates: Iterable[float]) -> int:
            sequences = tuple((rate, each.most) for rate, each in zip(rates, drafting, strict=True))
            draft_ms = self._draft_ms(drafting, drafter, growth)
            return draft_length(sequences, draft_ms, instead, beside, growth.useful, most, growth.milliseconds)

        rates = [self._rate(each.sequence, GuessKind.DRAFT) for each in drafting]
        due = [_record(each.sequence, GuessKind.DRAFT).retries.is_due for each in drafting]
        if (count := length(rates)) or not any(due):
            return count
        hoped = (max(rate, TRIAL_RATE) if again else rate for rate, again in zip(rates, due, strict=True))
        return min(TRIAL_GUESSES, length(hoped))

    def _draft_ms(self, drafting: Several["_Drafted"], drafter: Drafter, growth: Growth) -> StepPrice:
        """Milliseconds of proposals of so many tokens. Reading a prompt is paid for by all that may still come."""
        per_token = sum(
            drafter.reading_ms(each.backlog) / max(1, min(self._room(each.sequence), FORESEEN_TOKENS))
            for each in drafting
            if drafter.is_long(each.backlog)
        )

        def milliseconds(count: int) -> float:
            if not growth.costs.is_measured:
                return 0.0
            return drafter.proposal_ms(len(drafting), count) + per_token * (count + 1)

        return milliseconds


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A sequence that a draft model may guess for: tokens that it has to read, and the most that it can propose."""

    sequence: Sequence
    backlog: int
    most: int


def _record(sequence: Sequence, kind: GuessKind) -> KindRecord:
    return sequence.guesses.kinds[kind]
