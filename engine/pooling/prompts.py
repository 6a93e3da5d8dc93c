"""The tokens of what becomes a vector or a score: a text, token ids, or a query and a document."""

from dataclasses import dataclass
from typing import Protocol

from engine.bundle.manifest import Manifest
from engine.bundle.pooling import PoolingSpec, RerankSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.prompt import CUT_SLACK_TOKENS
from engine.text.tokenizer import Tokenizer

Ids = tuple[int, ...]


class PooledInput(Protocol):
    """One input of a request. param: the field that it came from, for errors."""

    @property
    def param(self) -> str: ...

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        """Its tokens, those that the model wants around it included; `limit` is the most.

        InvalidRequest or ContextLengthExceeded naming `param`.
        """


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text that becomes a vector, behind the prompt of that name (None = the model's own choice).

    keep: most tokens, of a longer text the first; None = a longer one is refused.
    """

    text: str
    param: str
    prompt_name: str | None = None
    keep: int | None = None

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        """Special tokens written in the text count as such, as they did in training."""
        spec = _pooling(manifest)
        room = (self.keep or limit) - len(spec.begin_ids) - len(spec.end_ids)
        text = _beginning(_prompt(spec, self.prompt_name) + self.text, room, tokenizer)
        body = tokenizer.encode(text, allow_special=True)
        kept = body if self.keep is None else body[: max(0, room)]
        return _bounded((*spec.begin_ids, *kept, *spec.end_ids), self.keep or limit, self.param)


@dataclass(frozen=True, slots=True)
class IdsInput:
    """Token ids that become a vector; nothing is put around them."""

    given: Ids
    param: str
    keep: int | None = None

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        """The ids, of which each must be one of the model's."""
        for index, token in enumerate(self.given):
            if not 0 <= token < manifest.model.vocab:
                where, last = f"{self.param}[{index}]", manifest.model.vocab - 1
                raise InvalidRequest(f"'{where}' is {token}, not a token id of this model (0 to {last}).", where)
        return _bounded(self.given[: self.keep], limit, self.param)


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A query and a document of which a chat model says whether they fit. instruction: "" = the model's own.

    keep: most tokens in all, document_tokens: of the document; None = a longer one is refused.
    """

    query: str
    document: str
    param: str
    instruction: str = ""
    keep: int | None = None
    document_tokens: int | None = None

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        """Special tokens written in query and document stay text: they could end what the judge was asked."""
        spec = manifest.rerank
        assert spec is not None, "the route has asked"
        prefix, suffix = (tokenizer.encode(part, allow_special=True) for part in (spec.prefix, spec.suffix))
        room = (self.keep or limit) - len(prefix) - len(suffix)
        if room < 1:
            least = len(prefix) + len(suffix) + 1
            raise InvalidRequest(f"'truncate_prompt_tokens' must leave {least} tokens.", "truncate_prompt_tokens")
        body = tokenizer.encode(_beginning(self._body(tokenizer, spec), room, tokenizer), allow_special=False)
        return _bounded((*prefix, *(body if self.keep is None else body[:room]), *suffix), limit, self.param)

    def _body(self, tokenizer: Tokenizer, spec: RerankSpec) -> str:
        document = self.document
        if self.document_tokens is not None:
            ids = tokenizer.encode(_beginning(document, self.document_tokens, tokenizer), allow_special=False)
            document = tokenizer.decode(ids[: self.document_tokens], skip_special=False)
        return spec.body.format(instruction=self.instruction or spec.instruction, query=self.query, document=document)


def _pooling(manifest: Manifest) -> PoolingSpec:
    assert manifest.pooling is not None, "the route has asked"
    return manifest.pooling


def _prompt(spec: PoolingSpec, name: str | None) -> str:
    if name is None:
        return spec.prompts.get(spec.default_prompt, "")
    if name not in spec.prompts:
        known = ", ".join(f"'{each}'" for each in spec.prompts) or "none"
        raise InvalidRequest(f"'prompt_name' is not a prompt of this model; it has {known}.", "prompt_name")
    return spec.prompts[name]


def _beginning(text: str, room: int, tokenizer: Tokenizer) -> str:
    """So much of a text as surely has more than `room` tokens: the rest costs time and changes nothing."""
    return text[: (room + CUT_SLACK_TOKENS) * tokenizer.longest_token_chars]


def _bounded(ids: Ids, limit: int, param: str) -> Ids:
    if not ids:
        raise InvalidRequest(f"'{param}' is empty: at least one token is needed.", param)
    if len(ids) > limit:
        raise ContextLengthExceeded(limit, len(ids), 0, param)
    return ids
