"""The table of task families with their shares, and the stream of samples drawn from it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from tools.demo_model.corpus.arithmetic import arithmetic
from tools.demo_model.corpus.capitals import capitals
from tools.demo_model.corpus.chat import chat, system_prompt
from tools.demo_model.corpus.conversation import Sample
from tools.demo_model.corpus.facts import facts
from tools.demo_model.corpus.json_objects import json_objects
from tools.demo_model.corpus.lists import echoes, lists, numerals
from tools.demo_model.corpus.stories import stories
from tools.demo_model.corpus.tools import tools, unrelated


class TaskFamily(NamedTuple):
    """A maker of samples, its share of them, and its share in the first steps of the training."""

    make: Callable[[Random], Sample]
    share: float
    early_share: float


FAMILIES: dict[str, TaskFamily] = {
    "arithmetic": TaskFamily(arithmetic, 14, 20),
    "capitals": TaskFamily(capitals, 10, 8),
    "echoes": TaskFamily(echoes, 2, 40),
    "lists": TaskFamily(lists, 16, 10),
    "numerals": TaskFamily(numerals, 8, 4),
    "tools": TaskFamily(tools, 13, 4),
    "json": TaskFamily(json_objects, 6, 6),
    "chat": TaskFamily(chat, 5, 5),
    "facts": TaskFamily(facts, 4, 2),
    "stories": TaskFamily(stories, 3, 2),
}
EARLY_STEPS = 600
_TAKES_UNRELATED_TOOLS = ("arithmetic", "capitals", "chat")


def draw(rng: Random, early: bool = False) -> Sample:
    """Draw one sample, sometimes with a system message or with tools that do not fit."""
    shares = [family.early_share if early else family.share for family in FAMILIES.values()]
    (name,) = rng.choices(list(FAMILIES), shares)
    sample = FAMILIES[name].make(rng)
    if sample.document or sample.turns[0].role == "system":
        return sample
    if name in _TAKES_UNRELATED_TOOLS and rng.random() < 0.025:
        sample = with_unrelated_tools(rng, sample)
    if rng.random() < 0.12:
        sample = replace(sample, turns=(system_prompt(rng), *sample.turns))
    return sample


def with_unrelated_tools(rng: Random, sample: Sample) -> Sample:
    """Offer tools that do not help with the sample's question."""
    return replace(sample, tools=unrelated(rng))
