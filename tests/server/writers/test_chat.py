"""The chunks of a chat, without a route."""

from engine.request import Delta
from server.http.merged_stream import ChoiceDelta
from server.writers.chat import ChatWriter
from server.writers.parsed_choice import ParsedChoice
from server.writers.usage import Envelope, StreamUsage, TokenCount
from tests.server.scripted_engine import NAME


def test_the_first_chunks_give_every_choice_its_role_in_order() -> None:
    count = TokenCount((3, 3), 2)
    writer = ChatWriter(
        Envelope("id", 1, NAME, "f"), count, [ParsedChoice(None) for _ in range(2)], None, StreamUsage(count, None)
    )
    chunks = writer.chunks([ChoiceDelta(1, Delta("b", (7,)))]) + writer.chunks([ChoiceDelta(0, Delta("a", (8,)))])
    role = {"role": "assistant", "content": ""}
    said = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    assert said == [(0, role), (1, role), (1, {"content": "b"}), (0, {"content": "a"})]
