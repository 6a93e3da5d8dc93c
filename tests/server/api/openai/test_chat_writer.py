"""The chunks of a chat, without a route."""

import msgspec

from engine.request import Delta
from server.api.openai.chat import ChatWriter
from server.generation.answers import Envelope, StreamUsage, TokenCount
from server.generation.parsing import ParsedChoice
from server.generation.stream import ChoiceDelta
from tests.server.scripted_engine import NAME


def test_the_first_chunks_give_every_choice_its_role_in_order() -> None:
    count = TokenCount((3, 3), 2)
    writer = ChatWriter(
        Envelope("id", 1, NAME, "f"), count, [ParsedChoice(None) for _ in range(2)], None, StreamUsage(count, None)
    )
    chunks = msgspec.to_builtins(
        writer.chunks([ChoiceDelta(1, Delta("b", (7,)))]) + writer.chunks([ChoiceDelta(0, Delta("a", (8,)))])
    )
    role = {"role": "assistant", "content": ""}
    said = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    assert said == [(0, role), (1, role), (1, {"content": "b"}), (0, {"content": "a"})]
