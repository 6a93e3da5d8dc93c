"""Everyday intents for which a tool may be offered, under several names each."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.demo_model.corpus.words import CITIES, COLOURS, NAMES, NOUNS, invented


@dataclass(frozen=True)
class Field:
    """One parameter of a tool: the names it may have, its type, its values, what is said of it."""

    names: tuple[str, ...]
    type: str
    values: str
    about: str
    required: bool = True


@dataclass(frozen=True)
class Intent:
    """Something a user asks for, with the names a tool for it may have."""

    names: tuple[str, ...]
    about: str
    fields: tuple[Field, ...]
    requests: tuple[str, ...]
    reply: tuple[tuple[str, str], ...]


def value(rng: Random, values: str) -> str | int:
    """Draw a value of the given sort, or one of those listed."""
    maker = _SORTS.get(values)
    return maker(rng) if maker else rng.choice(values.split("|"))


def _thing(rng: Random) -> str:
    return rng.choice(NOUNS) if rng.random() < 0.6 else f"{rng.choice(COLOURS)} {rng.choice(NOUNS)}"


def _file_name(rng: Random) -> str:
    return f"{rng.choice((rng.choice(NOUNS), invented(rng)))}.{rng.choice(('txt', 'md', 'py', 'json', 'csv'))}"


_SORTS: dict[str, Callable[[Random], str | int]] = {
    "number": lambda rng: rng.randint(1, rng.choice((9, 99, 999))),
    "city": lambda rng: rng.choice(CITIES) if rng.random() < 0.8 else invented(rng).capitalize(),
    "thing": _thing,
    "person": lambda rng: rng.choice(NAMES) if rng.random() < 0.8 else invented(rng).capitalize(),
    "time": lambda rng: f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45)):02d}",
    "file": _file_name,
    "sum": lambda rng: f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 99)}",
    "invented": invented,
}

_CITY = Field(("city", "location", "place", "city_name", "town"), "string", "city", "The name of the city")
_UNIT = Field(("unit", "units"), "string", "celsius|fahrenheit", "The unit", False)
_MINUTES = Field(("minutes", "duration", "length"), "integer", "number", "The time in minutes")
_PERSON = Field(("name", "person", "to", "recipient", "contact"), "string", "person", "The name of the person")
_THING = Field(("item", "thing", "product", "object"), "string", "thing", "The item")
_TOPIC = Field(("query", "q", "text", "topic", "keywords"), "string", "thing", "What to search for")
_FILE = Field(("path", "file", "filename", "name"), "string", "file", "The path of the file")
_SUM = Field(("expression", "formula", "input"), "string", "sum", "The expression to evaluate")
_TIME = Field(("time", "at", "when"), "string", "time", "The time of day")
_COLOUR = Field(("color", "colour"), "string", "red|blue|green|white|yellow|pink", "The color")
_ROOM = Field(("room", "where"), "string", "kitchen|bedroom|garden|office|bathroom|hall", "The room")
_WORD = Field(("text", "word", "phrase"), "string", "thing", "The text")
_LANGUAGE = Field(
    ("language", "target", "to"), "string", "French|German|Spanish|Italian|Dutch|Polish", "The target language"
)
_STOCK = Field(
    ("symbol", "ticker", "stock"), "string", "AAPL|MSFT|NVDA|AMD|INTC|IBM|TSLA|GOOG", "The symbol of the stock"
)
_COUNT = Field(("count", "number", "quantity", "amount"), "integer", "number", "How many")
_SIDES = Field(("sides", "max", "limit"), "integer", "number", "The largest number")
_AMOUNT = Field(("amount", "value"), "number", "number", "The amount of money")
_FROM = Field(("from", "source", "from_currency"), "string", "USD|EUR|GBP|JPY", "The currency to convert from")
_INTO = Field(("into", "target", "to_currency"), "string", "CHF|SEK|CAD|INR", "The currency to convert to")

INTENTS: tuple[Intent, ...] = (
    Intent(
        ("get_weather", "get_current_weather", "weather", "fetch_weather", "getWeather", "lookup_weather"),
        "Get the current weather in a city",
        (_CITY, _UNIT),
        ("What is the weather in {0}?", "What's the weather like in {0}?", "How is the weather in {0}?",
         "Is it raining in {0}?", "Weather in {0}?", "Tell me the weather in {0}.", "How warm is it in {0}?",
         "What is the weather in {0} today?", "What's the weather in {0}?", "What is the temperature in {0}?"),
        (("temperature", "number"), ("condition", "sunny|cloudy|rainy|windy|foggy")),
    ),
    Intent(
        ("get_time", "current_time", "get_current_time", "clock", "time_in"), "Get the current time in a city",
        (_CITY,), ("What time is it in {0}?", "Tell me the time in {0}.", "What is the time in {0}?"),
        (("time", "time"),),
    ),
    Intent(
        ("calculate", "calculator", "evaluate", "compute", "math"), "Evaluate an arithmetic expression", (_SUM,),
        ("Use the calculator for {0}.", "Calculate {0} with the tool.", "Evaluate {0}", "Work out {0} with the tool"),
        (("result", "number"),),
    ),
    Intent(
        ("search", "web_search", "search_web", "find", "lookup"), "Search the web", (_TOPIC,),
        ("Search for {0}.", "Search the web for {0}.", "Look up {0} on the web.", "Find pages about {0}."),
        (("hits", "number"), ("best", "thing")),
    ),
    Intent(
        ("set_timer", "start_timer", "timer", "countdown"), "Start a timer", (_MINUTES,),
        ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Timer for {0} minutes, please."),
        (("status", "started|running"),),
    ),
    Intent(
        ("set_alarm", "alarm", "create_alarm"), "Set an alarm", (_TIME,),
        ("Wake me at {0}.", "Set an alarm for {0}.", "Alarm at {0}, please."), (("status", "set|done"),),
    ),
    Intent(
        ("send_message", "message", "send_text", "notify"), "Send a message to a person", (_PERSON, _WORD),
        ("Send a message to {0}: {1}", "Tell {0} this: {1}", "Message {0} with the text {1}."),
        (("status", "sent|delivered"),),
    ),
    Intent(
        ("call_person", "phone", "dial", "start_call"), "Call a person by phone", (_PERSON,),
        ("Call {0}.", "Phone {0}, please.", "Ring {0}."), (("status", "ringing|busy|connected"),),
    ),
    Intent(
        ("add_item", "add_to_list", "shopping_list_add", "buy"), "Add an item to the shopping list", (_THING, _COUNT),
        ("Add {1} {0} to my shopping list.", "Put {1} {0} on the list.", "We need {1} {0}, add it to the list."),
        (("items", "number"),),
    ),
    Intent(
        ("read_file", "open_file", "cat", "get_file"), "Read a file", (_FILE,),
        ("Read the file {0}.", "Open {0}.", "Show me the file {0}.", "What is in {0}?"),
        (("lines", "number"), ("content", "thing")),
    ),
    Intent(
        ("delete_file", "remove_file", "rm"), "Delete a file", (_FILE,),
        ("Delete the file {0}.", "Remove {0}.", "Please delete {0}."), (("status", "deleted|done"),),
    ),
    Intent(
        ("set_light", "light", "set_light_color", "lamp"), "Set the color of the light in a room", (_ROOM, _COLOUR),
        ("Make the light in the {0} {1}.", "Turn the {0} light {1}.", "Set the lamp in the {0} to {1}."),
        (("status", "on|done"),),
    ),
    Intent(
        ("translate", "translate_text", "translator"), "Translate a text", (_WORD, _LANGUAGE),
        ("Translate {0} to {1}.", "Translate {0} into {1}.", "How do you say {0} in {1}?"),
        (("translation", "invented"),),
    ),
    Intent(
        ("get_stock_price", "stock_price", "quote", "get_quote"), "Get the price of a stock", (_STOCK,),
        ("What is the price of {0}?", "Stock price of {0}?", "How much is one share of {0}?"), (("price", "number"),),
    ),
    Intent(
        ("play_music", "play", "play_song", "music"), "Play a song", (_TOPIC,),
        ("Play {0}.", "Play the song {0}.", "Put on some music: {0}"), (("status", "playing|not found"),),
    ),
    Intent(
        ("roll_dice", "random_number", "roll", "pick_number"), "Draw a random number", (_SIDES,),
        ("Draw a random number up to {0}.", "Give me a random number up to {0}.", "Roll a die with {0} sides."),
        (("number", "number"),),
    ),
    Intent(
        ("convert_currency", "exchange", "convert", "currency"), "Convert money", (_AMOUNT, _FROM, _INTO),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "Change {0} {1} into {2}."), (("result", "number"),),
    ),
    Intent(
        ("get_population", "population", "city_population"), "Get the number of people in a city", (_CITY,),
        ("How many people live in {0}?", "What is the population of {0}?"), (("population", "number"),),
    ),
)  # fmt: skip
