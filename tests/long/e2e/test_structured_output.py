"""Hundreds of answers under random grammars, at random temperatures."""

from engine.client.engine import Engine
from tests.e2e.test_structured_output import check, engine

__all__ = ["engine"]


async def test_every_complete_answer_is_valid_at_any_temperature(engine: Engine) -> None:
    await check(engine, 400)
