"""`tokenizer.ggml.model` bert: WordPiece. The file marks what begins a word (U+2581), not what goes on (##)."""

from engine.compile.gguf.sentencepiece import SPACE
from engine.compile.gguf.vocabulary import Made, TokenizerFields, TokenKind, Vocabulary
from engine.errors import CompileError

GOES_ON = "##"
LONGEST_WORD = 100  # characters, as BERT's own: a longer word is unknown


def wordpiece_tokenizer(fields: TokenizerFields, vocabulary: Vocabulary) -> Made:
    """Ids that the file leaves out are those of BERT. CompileError for a token that is there twice."""
    tokens = vocabulary.tokens
    unknown = fields.token("unknown_token_id", tokens, 100)
    begin = fields.token("bos_token_id", tokens, fields.token("cls_token_id", tokens, 101))
    lowercase = fields.flag("normalizer.lowercase", True)
    document: dict[str, object] = {
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": fields.flag("normalizer.strip_accents", lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": GOES_ON, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": None if unknown is None else tokens[unknown],
            "continuing_subword_prefix": GOES_ON,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": _spelled(vocabulary),
        },
    }
    end = fields.token("seperator_token_id", tokens, 102)  # the format's own spelling
    return Made(document, begin, end, adds_bos=True, adds_eos=True)


def _spelled(vocabulary: Vocabulary) -> dict[str, int]:
    """Id by token, spelled as in a vocab.txt. What stands in brackets has no mark in either."""
    found: dict[str, int] = {}
    for token, identifier in vocabulary.ids().items():
        is_whole = vocabulary.kinds[identifier] != TokenKind.NORMAL or (
            token[:1] == "[" and token[2:] != "" and token[-1] == "]"
        )
        spelled = token if is_whole else token.removeprefix(SPACE) if token.startswith(SPACE) else GOES_ON + token
        if spelled in found:
            raise CompileError(f"{vocabulary.title}: the tokenizer has the token {spelled!r} twice")
        found[spelled] = identifier
    return found
