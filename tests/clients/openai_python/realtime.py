"""Sound over a realtime session: SOUND, a file of signed 16 bit at 24 kHz, to the server at OPENAI_BASE_URL.

TURNS: `server_vad`, or `none`: the client commits once. PACED: each second of sound comes when the server has written
the one before, sent as a file, so that it has time for the session as well, and silence follows until a word has come.
Prints the kinds of all events, and the items' texts with what their deltas said together; or the error of a session
that cannot be.
"""

import asyncio
import base64
import io
import json
import os
import wave
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from websockets.exceptions import InvalidStatus

RATE = 24_000
SECOND = 2 * RATE
PIECE = SECOND // 10
MOST_SILENCE = 60  # seconds


async def transcribed(client: AsyncOpenAI, connection: Any, turns: str) -> dict[str, Any]:
    detection = {"type": turns, "silence_duration_ms": 300} if turns != "none" else None
    model = {"model": os.environ["OPENAI_MODEL"], "language": "en"}
    given = {"transcription": model, "turn_detection": detection, "format": {"type": "audio/pcm", "rate": RATE}}
    await connection.session.update(session={"type": "transcription", "audio": {"input": given}})
    data = Path(os.environ["SOUND"]).read_bytes()
    heard = asyncio.Event()
    sending = asyncio.create_task(sent(client, connection, data, turns, heard))
    found: dict[str, Any] = {"kinds": [], "items": [], "transcripts": {}, "deltas": {}}
    done = False
    while not (done and set(found["items"]) == set(found["transcripts"])):
        event = await connection.recv()
        found["kinds"].append(event.type)
        match event.type:
            case "input_audio_buffer.committed":
                found["items"].append(event.item_id)
            case "input_audio_buffer.cleared":
                done = True
            case "conversation.item.input_audio_transcription.delta":
                heard.set()
                found["deltas"][event.item_id] = found["deltas"].get(event.item_id, "") + event.delta
            case "conversation.item.input_audio_transcription.completed":
                found["transcripts"][event.item_id] = event.transcript
            case "error" | "conversation.item.input_audio_transcription.failed":
                raise AssertionError(event.to_json())
    await sending
    return found


async def sent(client: AsyncOpenAI, connection: Any, data: bytes, turns: str, heard: asyncio.Event) -> None:
    """All of it, a second of silence behind it; what is then cleared tells that all was heard."""
    is_paced = "PACED" in os.environ
    silence = MOST_SILENCE if is_paced else 1
    for second in range(0, len(data) + silence * SECOND, SECOND):
        if is_paced and second > len(data) and heard.is_set():
            break
        piece = (data[second:] + bytes(SECOND))[:SECOND]
        for start in range(0, SECOND, PIECE):
            sound = base64.b64encode(piece[start : start + PIECE]).decode()
            await connection.input_audio_buffer.append(audio=sound)
        if is_paced:
            file = ("second.wav", as_wav(piece))
            await client.audio.transcriptions.create(file=file, model=os.environ["OPENAI_MODEL"], language="en")
    if turns == "none":
        await connection.input_audio_buffer.commit()
    await connection.input_audio_buffer.clear()


def as_wav(samples: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", "none"))
        out.writeframes(samples)
    return file.getvalue()


async def main() -> None:
    client = AsyncOpenAI(max_retries=0)
    query = json.loads(os.environ.get("QUERY", '{"intent": "transcription"}'))
    try:
        async with client.realtime.connect(extra_query=query) as connection:
            print(json.dumps(await transcribed(client, connection, os.environ["TURNS"])))
    except InvalidStatus as denied:
        print(json.dumps({"status": denied.response.status_code, **json.loads(denied.response.body or b"{}")}))


if __name__ == "__main__":
    asyncio.run(main())
