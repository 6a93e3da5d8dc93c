"""JSON objects made from a description in words."""

import json
from random import Random
from typing import Any

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.held_out import reserved
from tools.demo_model.corpus.phrasings import PHRASINGS
from tools.demo_model.corpus.words import CITIES, COLOURS, NAMES, NOUNS, invented, word


def json_objects(rng: Random) -> Sample:
    """Ask for a JSON object, now and then for a JSON list, outside the evaluation."""
    while True:
        sample = json_request(rng)
        if not reserved(sample.turns[0].content):
            return sample


def json_request(rng: Random) -> Sample:
    """Ask for a JSON object or list, outside or inside the evaluation."""
    if rng.random() < 0.12:
        items = [word(rng) for _ in range(rng.randint(2, 7))]
        request = rng.choice(("Give me a JSON list of {}.", "Write a JSON array with {}."))
        return exchange(request.format(", ".join(items)), json.dumps(items))
    fields = _fields(rng)
    described = [_describe(rng, key, value) for key, value in fields.items()]
    joint = described[0] if len(described) == 1 else ", ".join(described[:-1]) + " and " + described[-1]
    return exchange(rng.choice(PHRASINGS.json_requests).format(joint), json.dumps(fields))


def _fields(rng: Random) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": rng.choice(NAMES), "age": rng.randint(1, 99), "city": rng.choice(CITIES), "color": rng.choice(COLOURS),
        "count": rng.randint(0, 999), "item": rng.choice(NOUNS), "price": rng.randint(1, 500),
        "active": rng.random() < 0.5,
        "title": f"{rng.choice(COLOURS)} {rng.choice(NOUNS)}", "id": rng.randint(1, 9999),
    }  # fmt: skip
    chosen = rng.sample(sorted(known), rng.randint(1, 4))
    if rng.random() < 0.35:
        return {invented(rng): rng.choice((invented(rng), rng.randint(0, 999))) for _ in chosen}
    if rng.random() < 0.4:
        chosen = ["name", "age", "city"][: rng.randint(2, 3)]
    return {key: known[key] for key in chosen}


def _describe(rng: Random, key: str, value: Any) -> str:
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return rng.choice(("{} {}", "{} {}", "{}: {}", "{} = {}")).format(key, text)
