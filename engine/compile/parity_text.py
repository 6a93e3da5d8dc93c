"""The text a finished bundle is checked with."""

from pathlib import Path

from engine.compile.text_files import load_tokenizer

_TEXT = """A lighthouse keeper wrote the weather into a book every evening: wind from the west, 4 degrees, rain before
midnight. One day a boat brought 12 crates and a letter. "Count them twice," it said, "and answer by the next tide."
She counted them twice, found 11, and wrote back at once. What would you have done? def total(items): return
sum(item.price * item.count for item in items)  # prices are in cents. Die Kiste war leer. La réponse est simple."""


def parity_tokens(folder: Path, vocab: int, count: int) -> list[int]:
    """Exactly `count` ids of the built-in text by the folder's tokenizer, repeated as needed; all below `vocab`."""
    ids = [token for token in load_tokenizer(folder).encode(_TEXT).ids if token < vocab] or [0]
    return [ids[index % len(ids)] for index in range(count)]
