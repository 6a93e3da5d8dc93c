"""Facts hidden in long texts and asked for: `python -m tools.needles --url http://127.0.0.1:8000 --tokens 8000`.

Any server with OpenAI's API. Each depth is a prompt of its own, answered greedily; exit code 1 when one answer lacks
the fact. The text is a list of stock, which says nothing of the fact and is the same in every run. `--continue` is for
models that were not taught to chat: they go on with the text, which ends in the fact without its number.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the text, its end being 1
GOODS = ("apples", "bolts", "candles", "drums", "envelopes", "forks", "gloves")
TOWNS = ("Aston", "Brill", "Corby", "Dover", "Epsom", "Frome", "Goole", "Hythe", "Ilkley")
FACT = "The secret number of the blue door is {number}."
QUESTION = "What is the secret number of the blue door? Answer with the number only."
BEGINNING = FACT.partition(" {")[0]
PROBE, SHARE = 100, 128  # most sentences of the prompt whose tokens are counted first; tokens for each of them
RESERVE = 120  # tokens of fact, question, template and answer
ANSWER_TOKENS = 24

Ask = Callable[[str, int], "NeedleAnswer"]


@dataclass(frozen=True, slots=True)
class NeedleAnswer:
    """prompt_tokens: what the server counted."""

    text: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Needle:
    """One depth."""

    depth: float
    prompt_tokens: int
    answer: str
    is_found: bool


def sentence(index: int) -> str:
    """A line of the list; its numbers have one or two digits, that of the fact has five."""
    town, goods = TOWNS[index % len(TOWNS)], GOODS[index * 5 % len(GOODS)]
    return f"{town} keeps {7 + index * 31 % 90} {goods} on shelf {index % 60}."


def prompt(sentences: int, depth: float, number: int, question: str = QUESTION) -> str:
    """So many sentences with the fact among them, and the question behind them."""
    lines = [sentence(index) for index in range(sentences)]
    lines.insert(round(depth * sentences), FACT.format(number=number))
    return " ".join(lines) + "\n\n" + question


def needles(ask: Ask, tokens: int, depths: Sequence[float], question: str = QUESTION) -> Iterator[Needle]:
    """Each depth in a prompt of at most so many tokens. ValueError when they hold no sentence."""
    probe = max(1, min(PROBE, tokens // SHARE))
    few, many = (ask(prompt(count, 0.5, 10_000, question), 1).prompt_tokens for count in (probe, 2 * probe))
    rate = (many - few) / probe
    sentences = int((tokens - RESERVE) / rate)
    if sentences < 1:
        raise ValueError(f"--tokens {tokens} leaves no room beside {RESERVE} for question and answer")
    for place, depth in enumerate(depths):
        number = 24_817 + 9_973 * place % 70_000
        answer = ask(prompt(sentences, depth, number, question), ANSWER_TOKENS)
        yield Needle(depth, answer.prompt_tokens, answer.text, str(number) in answer.text.replace(",", ""))


def asking(client: httpx.Client, model: str, continues: bool = False) -> Ask:
    """Of a server's chat completions, or its completions, greedily. httpx.HTTPError when it refuses."""

    def ask(text: str, most: int) -> NeedleAnswer:
        asked = {"prompt": text} if continues else {"messages": [{"role": "user", "content": text}]}
        body = {"model": model, "temperature": 0, "max_tokens": most, **asked}
        place = "/v1/completions" if continues else "/v1/chat/completions"
        told = client.post(place, json=body).raise_for_status().json()
        [choice] = told["choices"]
        answer = choice["text"] if continues else choice["message"]["content"] or ""
        return NeedleAnswer(answer, told["usage"]["prompt_tokens"])

    return ask


def main() -> int:
    """Read the command line and print a line for each depth."""
    parser = argparse.ArgumentParser(description="Hide facts in long texts and ask for them.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="as the server calls it; its first one when left out")
    parser.add_argument("--tokens", type=int, default=8000, help="of each prompt with its answer")
    parser.add_argument("--continue", dest="continues", action="store_true", help="for models that do not chat")
    parser.add_argument("--depths", type=float, nargs="+", default=DEPTHS)
    arguments = parser.parse_args()
    with httpx.Client(base_url=arguments.url, timeout=None) as client:
        model = arguments.model or client.get("/v1/models").json()["data"][0]["id"]
        ask, question = asking(client, model, arguments.continues), BEGINNING if arguments.continues else QUESTION
        missed = 0
        for found in needles(ask, arguments.tokens, arguments.depths, question):
            missed += not found.is_found
            told = "found" if found.is_found else f"missed: {found.answer[:60]!r}"
            print(f"depth {found.depth:.2f} of {found.prompt_tokens} tokens: {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
