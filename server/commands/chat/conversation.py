"""What has been said in a chat, and how answers are made."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Conversation:
    """What has been said and how answers are made. `fields` are sent with every request."""

    system: str = ""
    fields: dict[str, float | int] = field(default_factory=dict)
    said: list[dict[str, str]] = field(default_factory=list)

    def messages(self, question: str = "") -> list[dict[str, str]]:
        """Everything so far, and `question` if there is one."""
        start = [{"role": "system", "content": self.system}] if self.system else []
        return start + self.said + ([{"role": "user", "content": question}] if question else [])

    def add(self, question: str, answer: str) -> None:
        """Keep one exchange."""
        self.said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def is_text(typed: str) -> bool:
    """False when some of the bytes it was read from are no characters (they are lone surrogates then)."""
    return not any("\ud800" <= character <= "\udfff" for character in typed)
