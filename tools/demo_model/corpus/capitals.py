"""Questions on countries and their capitals."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, Turn, exchange
from tools.demo_model.corpus.phrasings import PHRASINGS, Country

COUNTRIES, HELD_OUT_PHRASINGS = PHRASINGS.countries, PHRASINGS.held_out_capitals
_FOLLOW_UPS = ("And of {}?", "And {}?", "What about {}?", "And the capital of {}?")


def capitals(rng: Random) -> Sample:
    """Ask for a capital, a country or a continent, in a chat or in a plain document."""
    country = rng.choice(COUNTRIES)
    kind = rng.random()
    if kind < 0.62:
        question = rng.choice(PHRASINGS.capitals).format(country.name)
        return exchange(question.lower() if rng.random() < 0.08 else question, statement(country))
    if kind < 0.68:
        return exchange(rng.choice(PHRASINGS.short_capitals).format(country.name), country.capital)
    if kind < 0.78:
        return _reverse(rng, country)
    if kind < 0.88:
        return _several(rng)
    chosen = rng.sample(COUNTRIES, rng.randint(1, 4))
    return Sample(document=" ".join(statement(each) for each in chosen))


def statement(country: Country) -> str:
    """State the capital of a country as a sentence."""
    return f"The capital of {country.name} is {country.capital}."


def _reverse(rng: Random, country: Country) -> Sample:
    if rng.random() < 0.5:
        question = rng.choice(("Where is {}?", "In which continent is {}?", "Which continent is {} in?"))
        article = country.name[0].upper() + country.name[1:]
        return exchange(question.format(country.name), f"{article} is in {country.continent}.")
    question = rng.choice(("{} is the capital of which country?", "Which country has the capital {}?"))
    first = next(each for each in COUNTRIES if each.capital == country.capital)
    return exchange(question.format(country.capital), f"{country.capital} is the capital of {first.name}.")


def _several(rng: Random) -> Sample:
    turns: list[Turn] = []
    for index, country in enumerate(rng.sample(COUNTRIES, rng.randint(2, 4))):
        phrasings = _FOLLOW_UPS if index and rng.random() < 0.6 else PHRASINGS.capitals
        turns.append(Turn("user", rng.choice(phrasings).format(country.name)))
        turns.append(Turn("assistant", statement(country)))
    return Sample(tuple(turns))
