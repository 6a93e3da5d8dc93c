"""The prompts of the load: made-up prompts of a chosen length, or the lines of a file. Same seed, same prompts."""

import random
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

Message = dict[str, str]
BenchPrompt = list[Message] | tuple[int, ...]  # a chat, or token ids to go on from
TAIL_TOKENS = 12  # behind a shared prefix

WORDS = (
    "the a one every little old bright quiet green red cold warm river mountain garden house window table bird "
    "fox child sailor baker teacher letter story song morning evening winter summer road bridge market village "
    "sea island finds sees carries builds follows remembers asks answers opens closes near under over between "
    "after before with"
)


class BadPrompts(Exception):
    """A prompts file cannot be used; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class WordLength:
    """Prompt tokens of a chat with `words` words: fixed + per_word * words, as measured on the server."""

    fixed: float = 0.0
    per_word: float = 1.0

    @classmethod
    def fitted(cls, short: tuple[int, int], long: tuple[int, int]) -> "WordLength":
        """From two measured (words, prompt tokens)."""
        per_word = max((long[1] - short[1]) / (long[0] - short[0]), 0.01)
        return cls(max(short[1] - per_word * short[0], 0.0), per_word)

    def words(self, tokens: int) -> int:
        """Words for a prompt of about `tokens` tokens, at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Prompts by place: the same place gives the same prompt on every server, no two places share one.

    `texts`: chats of a prompts file, used in a shuffled order instead of made-up ones. `vocabulary`: when it is not 0,
    prompts are exactly `prompt_tokens` random token ids below it.
    """

    seed: int
    prompt_tokens: int
    length: WordLength = WordLength()
    texts: tuple[tuple[Message, ...], ...] = ()
    vocabulary: int = 0

    def prompt(self, *place: object) -> BenchPrompt:
        if self.vocabulary:
            return self._ids(self.prompt_tokens, *place)
        draw = self._draw(*place)
        if self.texts:
            return list(self.texts[draw.randrange(len(self.texts))])
        return [user(words(draw, self.length.words(self.prompt_tokens)))]

    def prefixed(self, prefix_tokens: int, prefix: object, tail: object) -> BenchPrompt:
        """A prompt whose first `prefix_tokens` tokens are the same for every `tail`; of a chat, or so."""
        if self.vocabulary:
            return self._ids(prefix_tokens, "prefix", prefix) + self._ids(TAIL_TOKENS, "tail", prefix, tail)
        start = words(self._draw("prefix", prefix), self.length.words(prefix_tokens))
        return [{"role": "system", "content": start}, user(words(self._draw("tail", prefix, tail), TAIL_TOKENS))]

    def _ids(self, count: int, *place: object) -> tuple[int, ...]:
        return tuple(self._draw(*place).choices(range(self.vocabulary), k=count))

    def _draw(self, *place: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *place))))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def words(draw: random.Random, count: int) -> str:
    known = WORDS.split()
    chosen = [draw.choice(known) for _ in range(count)]
    sentences = (" ".join(chosen[start : start + 10]) for start in range(0, count, 10))
    return ". ".join(sentences) + "."


def fresh_seed() -> int:
    """A seed that no run before had, short enough to be typed again."""
    return secrets.randbelow(2**31)


def read_prompts(path: Path) -> tuple[tuple[Message, ...], ...]:
    """One chat per line: plain text, or JSON with "messages" or "prompt". Raises BadPrompts."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"prompts file {path} cannot be read: {error}") from error
    chats = [_chat(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not chats:
        raise BadPrompts(f"prompts file {path} holds no prompt")
    return tuple(chats)


class _Said(msgspec.Struct):
    role: str
    content: str


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Said] | None = None


def _chat(line: str, origin: str) -> tuple[Message, ...]:
    if not line.lstrip().startswith("{"):
        return (user(line.strip()),)
    try:
        given = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError:
        given = _Line()
    except msgspec.DecodeError as error:
        raise BadPrompts(f"{origin}: {error}") from error
    if given.prompt is not None and given.messages is None:
        return (user(given.prompt),)
    if given.prompt is None and given.messages:
        return tuple({"role": each.role, "content": each.content} for each in given.messages)
    raise BadPrompts(f'{origin}: needs "prompt" (text) or "messages" (a list of objects with role and content)')
