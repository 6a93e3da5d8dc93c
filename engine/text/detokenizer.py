"""Incremental bytes to text. A code point is given out whole or not at all."""

import codecs

from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of one growing sequence of tokens: the pieces joined equal the decoding of all its bytes at once.

    Incomplete UTF-8 is held back; bytes that can never become a character give U+FFFD, one for each maximal
    subpart (Unicode 15, section 3.9), as a decoding of the whole does. Constant work per token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that is certain after one more token, often empty in the middle of a character."""
        if self._skip_special and self._tokenizer.is_hidden(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end: what is held back becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
