"""Keys of cached prefixes: a chain of hashes over whole pages of token ids."""

import struct
from collections.abc import Sequence
from hashlib import blake2b

PageKey = bytes


def page_keys(
    tokens: Sequence[int], page_columns: int, known: Sequence[PageKey] = (), salt: bytes = b""
) -> list[PageKey]:
    """One key per full page of `tokens`; a key covers every token up to the end of its page, and the salt.

    `known` are the keys of the first pages, computed before with the same salt; they are taken as they are. A caller
    that lacks the salt (at most 64 bytes) cannot find out, by time or by count, whether a prefix is cached
    (CVE-2025-46570).
    """
    keys = list(known)
    for page in range(len(keys), len(tokens) // page_columns):
        span = tokens[page * page_columns : (page + 1) * page_columns]
        digest = blake2b(keys[-1] if keys else b"", digest_size=16, key=salt)
        digest.update(struct.pack(f"<{page_columns}I", *span))
        keys.append(digest.digest())
    return keys
