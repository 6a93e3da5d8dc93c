"""The text a finished bundle is checked with."""

from pathlib import Path

from engine.compile.sources.text_files import load_tokenizer
from engine.demo.location import HELD_OUT, is_shipped, shipped_texts

MOST_TOKENS, LEAST_TOKENS = 512, 64
LARGE = 1_000_000_000  # parameters from which on fewer tokens are taken, so that the check takes as long

TEXT = Path(__file__).resolve().parents[1] / "texts" / "held_out.txt"


def enough_tokens(parameters: int) -> int:
    """Tokens of a check that means something: 512, of a model with more than 1e9 parameters fewer, but at least 64."""
    return max(LEAST_TOKENS, min(MOST_TOKENS, MOST_TOKENS * LARGE // max(parameters, 1)))


def parity_tokens(folder: Path, vocab: int, count: int) -> list[int]:
    """Exactly `count` ids of the built-in text by the folder's tokenizer, repeated as needed; all below `vocab`."""
    ids = [token for token in load_tokenizer(folder).encode(TEXT.read_text("utf-8")).ids if token < vocab] or [0]
    return [ids[index % len(ids)] for index in range(count)]


def parity_texts(source: Path, folder: Path, vocab: int, count: int, longest: int) -> list[list[int]]:
    """About `count` ids (at least 2) in sequences of at most `longest`.

    Shipped models are asked what their training held out; any other model gets the built-in text in even pieces.
    """
    if not is_shipped(source):
        return _pieces(parity_tokens(folder, vocab, count), longest)
    texts: list[list[int]] = []
    tokenizer = load_tokenizer(folder)
    for asked in shipped_texts(HELD_OUT):
        left = count - sum(map(len, texts))
        if left < 2:
            break
        ids = tokenizer.encode(asked, add_special_tokens=False).ids
        if len(ids) <= longest:
            texts.append(ids[:left])
    return texts or _pieces(parity_tokens(folder, vocab, count), longest)


def _pieces(tokens: list[int], longest: int) -> list[list[int]]:
    """As few as hold all tokens, of nearly one length, none of a single token."""
    length = -(-len(tokens) // -(-len(tokens) // longest))
    pieces = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    return [piece for piece in pieces if len(piece) > 1] or pieces
