"""Greetings, identity, thanks, refusals and chats of several turns."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, Turn
from tools.demo_model.corpus.phrasings import PHRASINGS
from tools.demo_model.corpus.words import NAMES, NOUNS, invented

REFUSAL = "I am sorry, I am only a small demo model and I do not know that."


def chat(rng: Random) -> Sample:
    """Hold a short talk: a greeting, a question about the model, or one it cannot answer."""
    kind = rng.random()
    if kind < 0.22:
        return _refusal(rng)
    if kind < 0.40:
        return _named_by_system(rng)
    if kind < 0.60:
        return _remembered_name(rng)
    count = rng.choice((1, 1, 1, 2, 3))
    return Sample(tuple(turn for _ in range(count) for turn in _pair(rng)))


def system_prompt(rng: Random) -> Turn:
    """Draw a system message that changes nothing in the answer."""
    return Turn("system", rng.choice(PHRASINGS.systems))


def _pair(rng: Random) -> tuple[Turn, Turn]:
    questions, answers = rng.choice(PHRASINGS.small_talk)
    return Turn("user", rng.choice(questions)), Turn("assistant", rng.choice(answers))


def _refusal(rng: Random) -> Sample:
    filler = rng.choice((rng.choice(NOUNS), invented(rng), str(rng.randint(1950, 2030))))
    question = rng.choice(PHRASINGS.unknown).format(filler)
    return Sample((Turn("user", question), Turn("assistant", REFUSAL)))


def _named_by_system(rng: Random) -> Sample:
    name = rng.choice(NAMES) if rng.random() < 0.4 else invented(rng).capitalize()
    system = rng.choice(("You are {}.", "Your name is {}.", "You are {}, a helpful assistant.")).format(name)
    question = rng.choice(("What is your name?", "Who are you?", "what's your name"))
    return Sample((Turn("system", system), Turn("user", question), Turn("assistant", f"I am {name}.")))


def _remembered_name(rng: Random) -> Sample:
    name = rng.choice(NAMES) if rng.random() < 0.4 else invented(rng).capitalize()
    opening = rng.choice(("My name is {}.", "Hi, I am {}.", "Hello, my name is {}.", "I am {}.")).format(name)
    turns = [Turn("user", opening), Turn("assistant", f"Hello {name}! How can I help you?")]
    if rng.random() < 0.4:
        turns.extend(_pair(rng))
    question = rng.choice(("What is my name?", "Who am I?", "Do you remember my name?"))
    return Sample((*turns, Turn("user", question), Turn("assistant", f"Your name is {name}.")))
