"""When the pieces of one answer came."""

from dataclasses import dataclass

from server.commands.http_client.event_stream import StreamedUsage


@dataclass(slots=True)
class Timing:
    """Times of one answer, in seconds since it was asked for; None until known."""

    asked_at: float
    first_s: float | None = None
    last_s: float | None = None
    usage: StreamedUsage | None = None

    def arrived(self, now: float) -> None:
        """Text came at `now`."""
        self.last_s = now - self.asked_at
        self.first_s = self.last_s if self.first_s is None else self.first_s

    def line(self) -> str:
        """For people. Tokens per second count from the question on: small answers come in one piece, at no rate."""
        if self.first_s is None or self.last_s is None:
            return "no text"
        parts = [f"first token {self.first_s * 1000:.0f} ms"]
        if self.usage is not None:
            tokens = self.usage.completion
            parts.insert(0, f"{tokens} tokens in {self.last_s:.2f} s, {tokens / self.last_s:.1f} tokens/s")
            parts.append(f"prompt {self.usage.prompt} ({self.usage.cached} cached)")
        return " | ".join(parts)
