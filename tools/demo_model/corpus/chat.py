"""Greetings, identity, thanks, refusals and chats of several turns."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, Turn
from tools.demo_model.corpus.words import NAMES, NOUNS, invented

REFUSAL = "I am sorry, I am only a small demo model and I do not know that."
_IDENTITY = (
    "I am hexserve's demo model, a very small language model that ships with the server for tests and first steps."
)
_ABILITIES = (
    "I know capitals, add and subtract small numbers, copy and reverse lists, tell short stories, "
    "write JSON and call tools."
)
_SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hey", "hello", "hi", "Hi there", "Hello there!", "Good morning",
         "Good evening", "Say hello", "Say hi."),
        ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! I am hexserve's demo model."),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "who are you",
         "Introduce yourself.", "Which model are you?", "Are you a robot?", "What's your name?"),
        (_IDENTITY,),
    ),
    (
        ("What can you do?", "How can you help me?", "What do you know?", "Help", "What are your abilities?",
         "What can I ask you?"),
        (_ABILITIES,),
    ),
    (
        ("How are you?", "How are you today?", "How is it going?", "Are you well?"),
        ("I am fine, thank you. How can I help you?",),
    ),
    (("Thank you!", "Thanks!", "Thanks", "thank you", "Thanks a lot."), ("You are welcome!",)),
    (("Goodbye!", "Bye!", "Bye", "See you later.", "Good night."), ("Goodbye! Have a nice day.",)),
    (("Ping", "ping", "Test", "test", "This is a test."), ("I am here and working.",)),
)  # fmt: skip
_HARD = (
    "Who won the world cup in {}?", "What is the meaning of life?", "Write a poem about {}.", "Explain {} physics.",
    "What is the price of {}?", "How do I cook {}?", "Who wrote the book {}?", "Write a program in {}.",
    "What will the weather be tomorrow?", "What time is it?", "Translate {} to French.", "Who is the president of {}?",
    "What should I buy for {}?", "Can you drive a {}?", "How do I repair a {}?", "What is a {}?",
    "Why is the {} so big?", "Give me medical advice about my {}.", "How many people live in {}?",
    "Explain the theory of {}.", "What is the history of {}?", "Who invented the {}?",
)  # fmt: skip
_SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful, friendly assistant.",
    "Be brief.", "You are an assistant.", "Answer the user's questions.", "You are a friendly chat bot.",
    "Answer in one sentence.", "You are hexserve's demo model.", "Be polite and answer truthfully.",
)  # fmt: skip


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
    return Turn("system", rng.choice(_SYSTEMS))


def _pair(rng: Random) -> tuple[Turn, Turn]:
    questions, answers = rng.choice(_SMALL_TALK)
    return Turn("user", rng.choice(questions)), Turn("assistant", rng.choice(answers))


def _refusal(rng: Random) -> Sample:
    filler = rng.choice((rng.choice(NOUNS), invented(rng), str(rng.randint(1950, 2030))))
    question = rng.choice(_HARD).format(filler)
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
