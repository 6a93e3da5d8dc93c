"""Which tokens of a Whisper are special: by their names, and by what its files say of decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.bundle.specs import SpeechSpec
from engine.errors import CompileError, UnsupportedModel

# In the order of their tokens; the last one is of large-v3 alone.
_LISTED = """
en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, pt portuguese, tr turkish,
pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian, id indonesian, hi hindi, fi finnish, vi vietnamese,
he hebrew, uk ukrainian, el greek, ms malay, cs czech, ro romanian, da danish, hu hungarian, ta tamil, no norwegian, th
thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, mi maori, ml malayalam, cy welsh, sk slovak, te
telugu, fa persian, lv latvian, bn bengali, sr serbian, az azerbaijani, sl slovenian, kn kannada, et estonian, mk
macedonian, br breton, eu basque, is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq
albanian, sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali, af
afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic, yi yiddish, lo lao, uz
uzbek, fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish, my
myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, ha hausa, ba bashkir, jw
javanese, su sundanese, yue cantonese
"""
NAMES = dict(entry.strip().split(" ", 1) for entry in _LISTED.replace("\n", " ").split(","))
IN_ORDER = tuple(NAMES)

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # between words


def language_name(code: str) -> str:
    """The English name of a code, in small letters; the code itself where it is not known."""
    return NAMES.get(code, code)


ENGLISH_VOCAB, ENGLISH_END, END = 51_864, 50_256, 50_257  # the end of a text, in models of English alone and in others
TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
BLANK = " "
# Nobody speaks these: alone and behind a space.
_LONG_SIGNS = """<< >> <<< >>> -- --- -( -[ (' (" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"""
_SIGNS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *_LONG_SIGNS.split())
_NOTES = "♩♪♫♬♭♮♯"  # several tokens each, of which the first is enough
_WITHIN_WORDS = (" -", " '")  # but not where a word begins


@dataclass(frozen=True, slots=True)
class WordList:
    """words: bytes of the ordinary tokens, by id; there may be more behind them. vocab: all tokens, positions: of the
    encoder. where: the file, for people."""

    words: Sequence[bytes] = field(repr=False)
    vocab: int
    positions: int
    where: str

    @property
    def end(self) -> int:
        """The token that ends a text; the file does not say it."""
        if self.vocab < ENGLISH_VOCAB:
            return len(self.words)
        return ENGLISH_END if self.vocab == ENGLISH_VOCAB else END


def tokenizer_of(told: WordList) -> Tokenizer:
    """Words, then special tokens. CompileError for a word that comes twice, UnsupportedModel when the number of special
    tokens is none that a Whisper has."""
    # How byte-level vocabularies write a byte: visible ones of Latin-1 as they are, others from U+0100 on.
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    letters, end = [chr(byte if byte in visible else next(others)) for byte in range(256)], told.end
    listed = told.words[:end]
    words = {_spelled(word, letters): index for index, word in enumerate(listed)}
    if len(words) < len(listed):
        raise CompileError(f"{told.where} is damaged: it has a word twice")
    merges = [(_spelled(first, letters), _spelled(second, letters)) for first, second in joined(listed)]
    made = Tokenizer(models.BPE(words, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    count = told.vocab - end - 2 - len(TASKS) - told.positions - 1
    if not 0 < count <= len(IN_ORDER):
        raise UnsupportedModel(f"{told.where}: {told.vocab} tokens leave {count} for languages")
    names = ("endoftext", "startoftranscript", *IN_ORDER[:count], *TASKS)
    # Ids are given in order, from the number of words on: what no word has is filled up.
    fillers = [f"<|unused {index}|>" for index in range(made.get_vocab_size(), end)]
    special = [AddedToken(text, special=True, normalized=False) for text in (*fillers, *map("<|{}|>".format, names))]
    made.add_special_tokens(special)
    return made


def joined(words: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Of each word the two earlier ones that it is made of, in order; those that are made of no two are left out."""
    ranks = {word: rank for rank, word in enumerate(words)}
    parts = (_parts(word, ranks, rank) for rank, word in enumerate(words) if len(word) > 1)
    return [(found[0], found[1]) for found in parts if len(found) == 2 and all(part in ranks for part in found)]


def _parts(word: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """A word cut into bytes of which the earliest pairs are joined, while these come before `below`."""
    parts = [word[index : index + 1] for index in range(len(word))]
    while len(parts) > 2:
        pairs = [ranks.get(first + second, below) for first, second in pairwise(parts)]
        at = pairs.index(min(pairs))
        if pairs[at] >= below:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def never_spoken(tokenizer: Tokenizer) -> list[int]:
    """Tokens of signs that nobody says."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    found = {token for text in _WITHIN_WORDS for token in ids(text)[:1]}
    for sign in (*_SIGNS, *_NOTES):
        for text in (sign, f" {sign}"):
            tokens = ids(text)
            if len(tokens) == 1 or sign in _NOTES:
                found.update(tokens[:1])
    return sorted(found)


def never_first(tokenizer: Tokenizer, end: int) -> list[int]:
    """Tokens with which no text begins: a blank, and the end."""
    blank = tokenizer.encode(BLANK, add_special_tokens=False).ids
    return [*(blank if len(blank) == 1 else ()), end]


def _spelled(word: bytes, letters: Sequence[str]) -> str:
    return "".join(letters[byte] for byte in word)


LANGUAGE_LETTERS = range(2, 4)
Natural = Annotated[int, msgspec.Meta(ge=0)]


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
    no_timestamps, transcribe, previous = named("notimestamps"), named("transcribe"), named("startofprev")
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
    try:
        heads = msgspec.convert(value if isinstance(value, list) else [], list[tuple[Natural, Natural]])
    except msgspec.ValidationError:
        raise CompileError("alignment_heads must hold pairs of a layer and a head") from None
    return tuple(heads)
