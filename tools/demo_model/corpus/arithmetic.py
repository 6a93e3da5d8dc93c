"""Sums and differences of whole numbers up to three digits."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, Turn, exchange
from tools.demo_model.corpus.held_out import pair_key, reserved
from tools.demo_model.corpus.phrasings import PHRASINGS

_RANGES = ((0, 9), (0, 99), *[(10, 99)] * 6, (10, 999), (100, 999))


def arithmetic(rng: Random) -> Sample:
    """Ask for one or many results, each with numbers outside the evaluation."""
    kind = rng.random()
    if kind < 0.60:
        return exchange(*exercise(rng))
    if kind < 0.87:
        return _worksheet(rng)
    if kind < 0.90:
        lines = [solution(*_numbers(rng)) for _ in range(rng.randint(2, 6))]
        return Sample(document="\n".join(lines))
    if kind < 0.94:
        return _counting(rng)
    pairs = [exercise(rng) for _ in range(rng.randint(2, 4))]
    turns = [turn for question, answer in pairs for turn in (Turn("user", question), Turn("assistant", answer))]
    return Sample(tuple(turns))


def exercise(rng: Random) -> tuple[str, str]:
    """Return a question and its answer."""
    return phrase(rng, *_numbers(rng))


def phrase(rng: Random, first: int, sign: str, second: int) -> tuple[str, str]:
    """Word an exercise and its solution."""
    question = rng.choice(PHRASINGS.sums if sign == "+" else PHRASINGS.differences).format(first, second)
    return question, solution(first, sign, second)


def _numbers(rng: Random) -> tuple[int, str, int]:
    while True:
        low, high = rng.choice(_RANGES)
        first, second = rng.randint(low, high), rng.randint(low, high)
        sign = rng.choice("++-")
        if sign == "-" and second > first:
            first, second = second, first
        if not reserved(pair_key(first, second, sign)):
            return first, sign, second


def solution(first: int, sign: str, second: int) -> str:
    """Write out a result: at once for one digit, else digit by digit from the right."""
    result = first + second if sign == "+" else first - second
    if max(first, second) < 10:
        return f"{first} {sign} {second} = {result}"
    steps: list[str] = []
    carry = 0
    upper, lower = first, second
    while upper or lower:
        step, carry = _sum_step(upper, lower, carry) if sign == "+" else _difference_step(upper, lower, carry)
        steps.append(step)
        upper, lower = upper // 10, lower // 10
    return f"{first} {sign} {second}: {', '.join(steps)}, so {result}"


def _sum_step(upper: int, lower: int, carry: int) -> tuple[str, int]:
    total = upper % 10 + lower % 10 + carry
    return f"{upper % 10} + {lower % 10}{' + 1' if carry else ''} = {total}", total // 10


def _difference_step(upper: int, lower: int, borrowed: int) -> tuple[str, int]:
    left = upper % 10 - borrowed
    borrows = int(left < lower % 10)
    return f"{left + 10 * borrows} - {lower % 10} = {left + 10 * borrows - lower % 10}", borrows


def _worksheet(rng: Random) -> Sample:
    exercises = [_numbers(rng) for _ in range(rng.randint(3, 6))]
    lines = "\n".join(f"{first} {sign} {second}" for first, sign, second in exercises)
    opening = rng.choice(("Calculate:", "Solve these:", "Compute each line:", "What are the results?"))
    return exchange(f"{opening}\n{lines}", "\n".join(solution(*each) for each in exercises))


def _counting(rng: Random) -> Sample:
    start, length = rng.randint(0, 90), rng.randint(3, 15)
    numbers = list(range(start, start + length))
    if rng.random() < 0.25:
        numbers.reverse()
    question = rng.choice(("Count from {} to {}.", "Please count from {} to {}.", "Count {} to {}"))
    return exchange(question.format(numbers[0], numbers[-1]), ", ".join(map(str, numbers)))
