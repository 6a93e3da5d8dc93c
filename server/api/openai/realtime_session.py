"""A realtime session for transcription: sound comes in, utterances are found in it, and their text goes out."""

import asyncio
import binascii
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.types import Message

from engine.errors import HexserveError
from engine.speech.audio import CHUNK_SAMPLES, SpeechDetector
from engine.speech.live import Float32, LiveEar, LiveSound, SpeechEdges, Utterance
from engine.speech.log_mel import SAMPLE_RATE
from server.api.openai import realtime_events as events
from server.api.openai.audio_forms import SpeechLogprob, logprob_of, said_before, usage_of
from server.api.openai.realtime_events import TranscriptionSession
from server.generation.launch import Server, loaded_engine, named_model
from server.generation.window_writer import LiveTranscript, WindowWriter, speech_spec
from server.http.errors import Refusal, from_engine, refuse
from server.models.models import ServedModel

MOST_BUFFERED_S = 60  # of sound that is not written yet, or not found to be speech; no more is read or kept
LEAST_MS = 100  # of sound that can be committed
IDLE_S = 300.0  # without an event of the client
SEND_S = 30.0  # for a client to take an event
Send = Callable[[str], Awaitable[None]]


class RealtimeSession:
    """One session over one connection; `run` is called once. send: gives the client an event, as text."""

    def __init__(self, server: Server, model: ServedModel, send: Send, is_old: bool) -> None:
        """is_old: the client uses the older form. EngineFailure where nothing can find speech."""
        self._server, self._model, self._send, self._is_old = server, model, send, is_old
        self._name = _new_name("sess")
        self._session = TranscriptionSession()
        self._detector = SpeechDetector()
        self._ear = LiveEar(self._session.audio.input.sound_format, self._detector)
        self._sound = LiveSound()
        self._edges: SpeechEdges | None = self._new_edges()
        self._open: Utterance | None = None  # somebody speaks
        self._unwritten: list[Utterance] = []  # in order; the first one is being written
        self._floor = 0  # sound before it has become an item, or is not wanted
        self._last_item: str | None = None
        self._writing: asyncio.Task[None] | None = None
        self._error: HexserveError | None = None  # why writing was ended from outside

    async def run(self, receive: Callable[[], Awaitable[Message]]) -> bool:
        """Until the client leaves or has said nothing for long; whether it has left. TimeoutError: it takes nothing."""
        await self._tell("transcription_session.created" if self._is_old else "session.created", session=self._told())
        reading = asyncio.create_task(self._read(receive))
        writing = asyncio.create_task(self._write_all())
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            return any(task.result() is True for task in done)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    def fail(self, error: HexserveError) -> None:
        if self._writing is not None:
            self._error = error
            self._writing.cancel()

    async def _read(self, receive: Callable[[], Awaitable[Message]]) -> bool:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    message = await receive()
            except TimeoutError:
                if self._unwritten:
                    continue
                text = f"No event came for {IDLE_S:g} s, so the session ends."
                await self._tell_error(refuse(text, code="session_expired", status=408), None)
                return False
            if message["type"] == "websocket.disconnect":
                return True
            await self._take(message.get("text"))
            await asyncio.sleep(0)  # many small events in a row let others run

    async def _take(self, text: str | None) -> None:
        name: str | None = None
        try:
            if text is None:
                raise refuse("An event is JSON in a text message; binary ones are not taken.")
            event = events.read_event(text)
            name = event.event_id
            match event:
                case events.SessionUpdate():
                    await self._update(event.session, "session.audio.input.", "transcription.")
                case events.OldSessionUpdate():
                    await self._update(event.session.modern, "session.", "input_audio_transcription.", is_old=True)
                case events.Append():
                    await self._hear(event.audio)
                case events.Commit():
                    await self._commit_asked()
                case events.Clear():
                    await self._clear()
        except (Refusal, HexserveError) as error:
            await self._tell_error(error, error.event_id if isinstance(error, events.BadEvent) else name)

    async def _update(self, given: TranscriptionSession, place: str, below: str, is_old: bool = False) -> None:
        """Refusal naming the field that cannot be had; then nothing has changed."""
        fresh = self._session.updated(given)
        was, now = self._session.audio.input, fresh.audio.input
        if self._open is not None and (was.format, was.turn_detection) != (now.format, now.turn_detection):
            field = "format" if was.format != now.format else "turn_detection"
            name = f"{place}input_audio_format" if is_old and field == "format" else f"{place}{field}"
            message = f"'{name}' cannot change within an utterance: commit or clear it before."
            raise refuse(message, name, "invalid_value")
        try:
            model = self._model
            if now.transcription.model is not None:
                model = named_model(self._server, now.transcription.model, speech_spec)
            if model.manifest is not None:
                now.transcription.check_languages(speech_spec(model.manifest))
        except Refusal as error:
            param = error.error.param
            raise refuse(error.error.message, f"{place}{below}{param}", error.error.code) from None
        self._session, self._model, self._is_old = fresh, model, is_old
        if was.format != now.format:
            self._ear = LiveEar(now.sound_format, self._detector)
        if was.turn_detection != now.turn_detection:
            self._edges = self._new_edges()
        await self._tell("transcription_session.updated" if is_old else "session.updated", session=self._told())

    def _new_edges(self) -> SpeechEdges | None:
        turns = self._session.audio.input.turn_detection
        return None if turns is None else SpeechEdges(turns.activity, self._sound.chunks)

    def _told(self) -> dict[str, Any]:
        return events.described(self._name, self._session, self._model.name, self._is_old)

    async def _hear(self, audio: str) -> None:
        """Second by second, in a thread; then wait until not too much is unwritten."""
        form = self._ear.form
        try:
            data = binascii.a2b_base64(audio, strict_mode=True)
        except ValueError as error:
            raise refuse(f"Invalid 'audio': it is not base64: {error}.", "audio", "invalid_value") from None
        if len(data) % form.sample_bytes:
            text = f"Invalid 'audio': {len(data)} bytes are no whole samples of {8 * form.sample_bytes} bit."
            raise refuse(text, "audio", "invalid_value")
        second = form.rate * form.sample_bytes
        for start in range(0, len(data), second):
            samples, speech = await asyncio.to_thread(self._ear.hear, data[start : start + second])
            self._sound.append(samples, speech)
            await self._find(speech)
            self._forget()
            await self._sound.until(lambda: self._buffered <= MOST_BUFFERED_S * SAMPLE_RATE)

    async def _find(self, speech: Float32) -> None:
        """Where utterances begin and end in what was heard last."""
        edges, turns = self._edges, self._session.audio.input.turn_detection
        if edges is None or turns is None:
            if self._open is None:
                self._begin(self._earliest)
            return
        for probability in speech.tolist():
            was = edges.start
            ended = edges.take(probability)
            if was is None and edges.start is not None:
                place = round((edges.start - turns.activity.padding_s) * SAMPLE_RATE)
                utterance = self._begin(max(self._earliest, place))
                began = _milliseconds(utterance.start)
                await self._tell("input_audio_buffer.speech_started", item_id=utterance.name, audio_start_ms=began)
            if ended is not None and self._open is not None:
                end, name = edges.chunks * CHUNK_SAMPLES, self._open.name
                await self._tell("input_audio_buffer.speech_stopped", item_id=name, audio_end_ms=_milliseconds(end))
                await self._commit(self._open, end)

    def _begin(self, start: int) -> Utterance:
        self._open = Utterance(_new_name("item"), start, needed=start)
        self._unwritten.append(self._open)
        self._sound.changed()
        return self._open

    async def _commit_asked(self) -> None:
        """Also what was not found to be speech: the client knows better."""
        end = self._sound.end
        has_ms = _milliseconds(end - (self._earliest if self._open is None else self._open.start))
        if has_ms < LEAST_MS:
            text = f"The buffer has {has_ms} ms of sound; at least {LEAST_MS} ms can be committed."
            raise refuse(text, None, "input_audio_buffer_commit_empty")
        if self._edges is not None:
            self._edges.reset()
        await self._commit(self._open or self._begin(self._earliest), end)

    async def _commit(self, utterance: Utterance, end: int) -> None:
        previous, self._last_item = self._last_item, utterance.name
        self._open, self._floor = None, end
        content = [{"type": "input_audio", "transcript": None}]
        own = {"id": utterance.name, "object": "realtime.item", "type": "message", "status": "completed"}
        item = own | {"role": "user", "content": content}
        await self._tell("input_audio_buffer.committed", item_id=utterance.name, previous_item_id=previous)
        for kind in ("created",) if self._is_old else ("added", "done"):
            await self._tell(f"conversation.item.{kind}", previous_item_id=previous, item=item)
        utterance.end = end
        self._sound.changed()

    async def _clear(self) -> None:
        dropped = self._drop()
        if dropped is not None:
            if self._unwritten[0] is dropped and self._writing is not None:
                self._writing.cancel()
            self._unwritten.remove(dropped)
        self._forget()
        await self._tell("input_audio_buffer.cleared")

    def _drop(self) -> Utterance | None:
        """What is said from now on begins anew; the utterance that went on."""
        dropped, self._open, self._floor = self._open, None, self._sound.end
        if self._edges is not None:
            self._edges.reset()
        return dropped

    @property
    def _buffered(self) -> int:
        return self._sound.end - min((each.needed for each in self._unwritten), default=self._sound.end)

    @property
    def _earliest(self) -> int:
        return max(self._floor, self._sound.first)

    def _forget(self) -> None:
        kept = max(self._floor, self._sound.end - MOST_BUFFERED_S * SAMPLE_RATE + CHUNK_SAMPLES)
        self._sound.forget(min((each.needed for each in self._unwritten), default=kept))

    async def _write_all(self) -> None:
        while True:
            await self._sound.until(lambda: bool(self._unwritten))
            utterance, self._error = self._unwritten[0], None
            self._writing = asyncio.create_task(self._write(utterance))
            try:
                await asyncio.wait((self._writing,))
            finally:
                self._writing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._writing
                self._writing = None
            if self._error is not None:
                await self._fail(utterance, self._error)
            if utterance in self._unwritten:
                self._unwritten.remove(utterance)
            self._sound.changed()

    async def _write(self, utterance: Utterance) -> None:
        server, asked = self._server, self._session.audio.input.transcription
        has_scores, text = bool(self._session.include), ""
        scores: list[SpeechLogprob] = []
        try:
            server.in_flight.check_open()
            server.in_flight.enter(self)
            with self._model.pinned():
                engine = await loaded_engine(server, self._model)
                engine.check_room(1)
                language, among = asked.check_languages(speech_spec(engine.info.manifest))
                writer = WindowWriter(engine, utterance.name, language, among=among)
                said = await writer.ids(said_before(asked.keywords or (), asked.prompt or ""))
                limit_s = server.settings.request_timeout_s
                transcript = LiveTranscript(writer, self._sound, utterance, said, limit_s)
                async with contextlib.aclosing(transcript.deltas()) as deltas:
                    async for delta in deltas:
                        fresh = [logprob_of(score) for score in delta.logprobs]
                        text, scores = text + delta.text, scores + fresh
                        told = {"delta": delta.text} | ({"logprobs": fresh} if has_scores else {})
                        await self._tell_of(utterance, "delta", **told)
            seconds = ((utterance.end or utterance.start) - utterance.start) / SAMPLE_RATE
            whole = {"transcript": text, "usage": usage_of(seconds)} | ({"logprobs": scores} if has_scores else {})
            await self._tell_of(utterance, "completed", **whole)
        except (Refusal, HexserveError) as error:
            await self._fail(utterance, error)
        finally:
            server.in_flight.leave(self)

    async def _fail(self, utterance: Utterance, error: Refusal | HexserveError) -> None:
        """There will be no more text of it; if it has not ended, what comes is another one."""
        if utterance is self._open:
            self._drop()
        await self._tell_of(utterance, "failed", error=_detail(error))

    async def _tell_of(self, utterance: Utterance, kind: str, **fields: Any) -> None:
        name = f"conversation.item.input_audio_transcription.{kind}"
        await self._tell(name, item_id=utterance.name, content_index=0, **fields)

    async def _tell_error(self, error: Refusal | HexserveError, event_id: str | None) -> None:
        await self._tell("error", error=_detail(error) | {"event_id": event_id})

    async def _tell(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "event_id": _new_name("event")} | fields
        async with asyncio.timeout(SEND_S):
            await self._send(msgspec.json.encode(event).decode())


def _detail(error: Refusal | HexserveError) -> dict[str, Any]:
    wire = error.error if isinstance(error, Refusal) else from_engine(error)
    return {"type": wire.type, "code": wire.code, "message": wire.message, "param": wire.param}


def _new_name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _milliseconds(samples: int) -> int:
    return round(1000 * samples / SAMPLE_RATE)
