"""A vocabulary of 50 tokens, grammars over it that can be followed by hand, and executors that do as they are told."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from engine.grammar.call_rules import Literals
from engine.grammar.compiler import serialised
from engine.grammar.masks import GrammarMasks
from engine.grammar.spec import Choice, GrammarSpec

END = 49
CHARACTERS = [bytes((48 + index,)) for index in range(END)]  # 0 to 9, : to @, A to Z, [ to `
TEXTS = ("00112233AABB", "00112233ABAB", "0099", "009", "A", "AZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", "1A2B3C4D5E6F7G8H")


class _Tokens:
    eos_token_id = END
    bos_token_id = None
    tokens = (*CHARACTERS, b"<|end|>")
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        return [byte - 48 for byte in text]


def small_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Tokens()), eos_token=[END])


def grammar(texts: tuple[str, ...] = TEXTS) -> str:
    return serialised(GrammarSpec(Choice(texts)), Literals({}))


def allowed(texts: tuple[str, ...], so_far: list[int]) -> set[int]:
    """By definition: characters that lead on to one of the texts; the end after a whole one."""
    said = text_of(so_far)
    found = {ord(text[len(said)]) - 48 for text in texts if text.startswith(said) and len(text) > len(said)}
    return found | ({END} if said in texts else set())


def text_of(tokens: list[int]) -> str:
    return "".join(chr(48 + token) for token in tokens if token != END)


class Inline(Executor):
    """Does everything at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (a future holds whatever was raised)
            future.set_exception(error)
        return future


class OnDemand(Executor):
    """Does nothing until `run`."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (a future holds whatever was raised)
                future.set_exception(error)

        self.jobs.append(job)
        return future

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


def inline_masks() -> GrammarMasks:
    return GrammarMasks(small_tokenizer, Inline(), Inline())
