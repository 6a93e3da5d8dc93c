"""Texts of a template cut into atoms: what looks like a tag is never cut through. Pure."""

import re
from collections.abc import Sequence

from engine.bundle.answer_format import TAG

_ATOM = re.compile(rf"{TAG.pattern}|\w+|.", re.DOTALL)


def atoms(text: str) -> list[str]:
    """Tags, words and single signs."""
    return _ATOM.findall(text)


def is_tag(atom: str) -> bool:
    """Whether an atom looks like a tag or a control token."""
    return TAG.fullmatch(atom) is not None


def common_start(*texts: str) -> str:
    """The longest beginning that all have, in whole atoms."""
    return "".join(_shared([atoms(text) for text in texts]))


def common_end(*texts: str) -> str:
    """The longest end that all have, in whole atoms."""
    return "".join(reversed(_shared([atoms(text)[::-1] for text in texts])))


def first_tags(text: str, count: int = 1) -> str:
    """`text` up to its `count`-th tag, "" when it has fewer."""
    found, parts = 0, []
    for atom in atoms(text):
        parts.append(atom)
        found += is_tag(atom)
        if found == count:
            return "".join(parts)
    return ""


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    same: list[str] = []
    for row in zip(*lists, strict=False):
        if len(set(row)) > 1:
            break
        same.append(row[0])
    return same
