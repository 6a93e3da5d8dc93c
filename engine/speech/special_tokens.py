"""Which tokens of a Whisper are special: by their names, and by what its files say of decoding."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from engine.bundle.specs import SpeechSpec
from engine.errors import CompileError
from engine.speech.words import ENGLISH_VOCAB

LANGUAGE_LETTERS = range(2, 4)


@dataclass(frozen=True, slots=True)
class Window:
    """What the encoder reads, [mels, frames], and how many positions it makes of it."""

    mels: int
    frames: int
    positions: int


def speech_spec(tokenizer: Tokenizer, vocab: int, window: Window, decoding: Mapping[str, object]) -> SpeechSpec:
    """The ids that are looked up by their names, and what generation_config.json says. CompileError."""

    def named(*names: str) -> int:
        found = next((token for name in names if (token := tokenizer.token_to_id(f"<|{name}|>")) is not None), None)
        if found is None or found >= vocab:
            raise CompileError(f"the tokenizer has no token <|{names[0]}|> below {vocab}")
        return found

    start, end, translate = named("startoftranscript"), named("endoftext"), named("translate")
    no_timestamps = named("notimestamps")
    transcribe, previous = named("transcribe"), named("startofprev")
    no_speech = named("nospeech", "nocaptions")
    special = {start, translate, transcribe, previous, no_speech, named("startoflm")}
    suppressed = _ids(decoding.get("suppress_tokens"), vocab, "suppress_tokens")
    # Models of English alone have tokens of languages that they never saw.
    is_english = vocab == ENGLISH_VOCAB or decoding.get("is_multilingual") is False
    return SpeechSpec(
        mels=window.mels,
        frames=window.frames,
        positions=window.positions,
        start=start,
        end=end,
        transcribe=transcribe,
        translate=translate,
        previous=previous,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        languages={} if is_english else _languages(tokenizer, start, min(translate, transcribe)),
        suppressed=tuple(sorted({*suppressed, *special})),
        first=_ids(decoding.get("begin_suppress_tokens"), vocab, "begin_suppress_tokens"),
        alignment=_heads(decoding.get("alignment_heads")),
    )


def _languages(tokenizer: Tokenizer, start: int, stop: int) -> dict[str, int]:
    """Codes between the token that starts a transcript and the tasks; a model of one language has none that is told."""
    found = {}
    for token in range(start + 1, stop):
        text = tokenizer.id_to_token(token) or ""
        code = text.removeprefix("<|").removesuffix("|>")
        if text == f"<|{code}|>" and len(code) in LANGUAGE_LETTERS:
            found[code] = token
    return found if len(found) > 1 else {}


def _ids(value: object, vocab: int, name: str) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else []
    if not all(isinstance(item, int) and -1 <= item < vocab for item in listed):
        raise CompileError(f"{name} must hold token ids below {vocab}")
    return tuple(item for item in listed if item >= 0)


def _heads(value: object) -> tuple[tuple[int, int], ...]:
    listed = value if isinstance(value, list) else []
    for item in listed:
        if not (
            isinstance(item, list) and len(item) == 2 and all(isinstance(part, int) and part >= 0 for part in item)
        ):
            raise CompileError("alignment_heads must hold pairs of a layer and a head")
    return tuple((int(layer), int(head)) for layer, head in listed)
