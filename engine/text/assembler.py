"""Token events to deltas: bytes to text, stop strings, stop tokens, log-probabilities. No I/O."""

from dataclasses import dataclass

from engine.request import Delta, FinishReason, TextLogprob, TokenEvent, TokenLogprob
from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import StopMatcher
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends the text and what of it is shown. `end_ids` are the model's own end tokens."""

    strings: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    end_ids: tuple[int, ...] = ()


class TextAssembler:
    """Owns the text state of one sequence. After a delta with `finish` it must not be fed again."""

    def __init__(self, tokenizer: Tokenizer, rules: StopRules) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer, rules.skip_special)
        self._matcher = StopMatcher(rules.strings, rules.include_stop) if rules.strings else None

    def feed(self, event: TokenEvent) -> Delta:
        """Turn one event into one delta; a stop string in it finishes the delta and drops the tokens behind."""
        text = ""
        last = len(event.token_ids) - 1
        for index, token_id in enumerate(event.token_ids):
            if index == last and event.stopped_by == token_id and not self._shows_stop_token(token_id):
                continue
            text += self._push(self._detokenizer.push(token_id))
            if self._matched is not None:
                return self._stopped(event, text, index + 1)
        if event.finish is not None:
            text += self._push(self._detokenizer.flush())
            if self._matched is not None:
                return self._stopped(event, text, last + 1)
            text += self._matcher.flush() if self._matcher is not None else ""
        return Delta(
            text,
            event.token_ids,
            tuple(self._text_logprob(entry) for entry in event.logprobs),
            event.finish,
            None if event.stopped_by in self._rules.end_ids else event.stopped_by,
            event.timings,
            self._prompt_logprobs(event),
            vector=event.vector,
        )

    @property
    def _matched(self) -> str | None:
        return self._matcher.matched if self._matcher is not None else None

    def _push(self, text: str) -> str:
        return self._matcher.push(text) if self._matcher is not None else text

    def _stopped(self, event: TokenEvent, text: str, used_tokens: int) -> Delta:
        logprobs = tuple(self._text_logprob(entry) for entry in event.logprobs[:used_tokens])
        used = event.token_ids[:used_tokens]
        prompt_logprobs = self._prompt_logprobs(event)
        return Delta(text, used, logprobs, FinishReason.STOP, self._matched, event.timings, prompt_logprobs)

    def _prompt_logprobs(self, event: TokenEvent) -> tuple[TextLogprob, ...]:
        return tuple(self._text_logprob(entry) for entry in event.prompt_logprobs)

    def _shows_stop_token(self, token_id: int) -> bool:
        """A special token shows when specials do; an ordinary one is a stop sequence like a stop string."""
        if self._tokenizer.is_special(token_id):
            return not self._rules.skip_special
        return self._rules.include_stop

    def _text_logprob(self, entry: TokenLogprob) -> TextLogprob:
        own = self._tokenizer.token_bytes(entry.token_id)
        alternatives = []
        for token_id, logprob in entry.top:
            token = self._tokenizer.token_bytes(token_id)
            alternatives.append((token.decode("utf-8", "replace"), token, logprob))
        return TextLogprob(own.decode("utf-8", "replace"), own, entry.logprob, tuple(alternatives))
