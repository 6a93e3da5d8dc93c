"""The one place that sets up llguidance: the tokenizer as it sees it, its limits, and a matcher that is known good."""

import re
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.files import TOKENIZER_BYTES, read_text

# Fuel is llguidance's own unit of work. Speeds it states: 50k/ms for the initial one, 14k/ms and 20k/ms for a step.
INITIAL_FUEL = 20_000_000
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
ROW_ITEMS = 2_000
LEXER_STATES = 100_000  # 1 to 2 kB each
GRAMMAR_SYMBOLS = 500_000
MESSAGE_CHARACTERS = 300


class GrammarFailed(Exception):
    """llguidance cannot go on with a grammar; the message says why."""


def load_tokenizer(file: Path, vocab: int, end_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's view of a tokenizer.json; GrammarFailed when it cannot read it. Takes seconds for 150k tokens."""
    try:
        return LLTokenizer(read_text(file, TOKENIZER_BYTES), n_vocab=vocab, eos_token=list(end_ids))
    except (ValueError, OSError) as error:
        raise GrammarFailed(f"structured output is not possible with this model's tokenizer: {error}") from None


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning; GrammarFailed when llguidance refuses the grammar."""
    limits = LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )
    return checked(LLMatcher(tokenizer, grammar, log_level=0, limits=limits))


def checked(matcher: LLMatcher) -> LLMatcher:
    """The matcher itself; GrammarFailed when it is in its error state."""
    if matcher.is_error():
        raise GrammarFailed(_told(matcher.get_error()))
    return matcher


def _told(error: str) -> str:
    """What llguidance says, without the text of a grammar that the caller did not write."""
    said = re.split(r"\n *\d+ \|", error)[0].replace("<non-verbose/>", "")
    if "NoExtensionBias" in said:  # its name for a grammar that lets nothing be said
        return "no text satisfies it"
    return " ".join(said.split())[:MESSAGE_CHARACTERS]


def control_tokens(tokenizer: LLTokenizer) -> dict[str, int]:
    """What llguidance takes for control tokens, by their texts, which no text of a grammar can match."""
    ids = (token for token in range(tokenizer.vocab_size) if tokenizer.is_special_token(token))
    return {text: token for token in ids if len(text := str(tokenizer.decode_str([token]))) > 1}
