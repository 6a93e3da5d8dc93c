"""One line of what `hexserve doctor` tells."""

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. advice: what to do about a failure, '' when nothing is known.

    said: the last of what the libraries wrote before they failed; for the file only.
    """

    name: str
    status: CheckStatus
    text: str
    advice: str = ""
    said: str = ""
