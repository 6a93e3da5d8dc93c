"""Keys of cached prefixes: a chain of hashes over whole pages of token ids."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from math import lcm

PageKey = bytes


def pages_at_once(page_columns: int, block_length: int) -> int:
    """The fewest pages that end where a block ends. Keys of a block depend on all its tokens, so it is shared whole."""
    return lcm(page_columns, max(1, block_length)) // page_columns


def page_keys(
    tokens: Sequence[int],
    page_columns: int,
    known: Sequence[PageKey] = (),
    salt: bytes = b"",
    block_length: int = 0,
) -> list[PageKey]:
    """One key per full page of `tokens`; a key covers every token up to the end of its page, and the salt.

    block_length: rows of so many tokens see each other both ways, 0 = causal. Then a key covers the tokens up to the
    end of `pages_at_once` pages, and there are keys for whole runs of them only.

    `known` are the keys of the first pages, computed before with the same salt; they are taken as they are. A caller
    that lacks the salt (at most 64 bytes) cannot find out, by time or by count, whether a prefix is cached
    (CVE-2025-46570).
    """
    keys = list(known)
    run = pages_at_once(page_columns, block_length)
    root = f"blocks of {block_length}".encode() if block_length else b""
    for page in range(len(keys), len(tokens) // page_columns // run * run):
        first = page - page % run
        span = tokens[first * page_columns : (first + run) * page_columns]
        digest = blake2b(keys[-1] if keys else root, digest_size=16, key=salt)
        digest.update(struct.pack(f"<{len(span)}I", *span))
        keys.append(digest.digest())
    return keys
