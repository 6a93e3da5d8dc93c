"""What a client that tokenises for itself must know of a bundle."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Special tokens and the source of the chat template; None where the bundle has none."""

    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    special_tokens: tuple[str, ...]
    chat_template: str | None
