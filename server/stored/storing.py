"""What a request wants to be stored."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Storing:
    """is_kept: the response is stored. is_background: it goes on without its client. previous: what it follows."""

    is_kept: bool = False
    is_background: bool = False
    previous: str | None = None
