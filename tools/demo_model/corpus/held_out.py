"""Which prompts are kept out of training, so that the evaluation asks for unseen ones."""

from zlib import crc32


def reserved(key: str, one_in: int = 16) -> bool:
    """Tell whether the prompt with this key belongs to the evaluation."""
    return crc32(key.encode()) % one_in == 0


def pair_key(first: int, second: int, sign: str) -> str:
    """Name an arithmetic exercise, the same for both orders of a sum."""
    if sign == "+":
        first, second = sorted((first, second))
    return f"{first}{sign}{second}"
