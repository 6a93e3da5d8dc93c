"""Embeddings and scores: the tokens of a text, and what is made of its vector. Of each input of a request `ids` are the
tokens, those that the model wants around it included; `limit` is the most. param: the field that it came from;
InvalidRequest and ContextLengthExceeded name it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import PoolingSpec, RerankKind, RerankSpec
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.prompt import CUT_SLACK_TOKENS
from engine.text.tokenizer import Tokenizer

Ids = tuple[int, ...]
# D = numbers of a vector
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text that becomes a vector, behind the prompt of that name (None = the model's own choice). keep: most tokens,
    of a longer text the first; None = a longer one is refused."""

    text: str
    param: str
    prompt_name: str | None = None
    keep: int | None = None

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        """Special tokens written in the text count as such, as they did in training."""
        spec = manifest.pooling
        assert spec is not None, "the route has asked"
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
class Pair:
    """A query and a document: a chat model says whether they fit, or an encoder reads them as one pair. keep: most
    tokens in all, document_tokens: of the document; None = a longer one is refused. instruction: for a chat model, "" =
    the model's own. Special tokens in either stay text: they could end the question, or tell the two apart."""

    query: str
    document: str
    param: str
    keep: int | None = None
    document_tokens: int | None = None
    instruction: str = ""

    def ids(self, tokenizer: Tokenizer, manifest: Manifest, limit: int) -> Ids:
        spec = manifest.rerank
        assert spec is not None, "the route has asked"
        made = self._judged if spec.kind is RerankKind.JUDGE else self._side_by_side
        return _bounded(made(tokenizer, spec, limit), limit, self.param)

    def _judged(self, tokenizer: Tokenizer, spec: RerankSpec, limit: int) -> Ids:
        prefix, suffix = (tokenizer.encode(part, allow_special=True) for part in (spec.prefix, spec.suffix))
        room = (self.keep or limit) - len(prefix) - len(suffix)
        if room < 1:
            least = len(prefix) + len(suffix) + 1
            raise InvalidRequest(f"'truncate_prompt_tokens' must leave {least} tokens.", "truncate_prompt_tokens")
        body = tokenizer.encode(_beginning(self._body(tokenizer, spec), room, tokenizer), allow_special=False)
        return (*prefix, *(body if self.keep is None else body[:room]), *suffix)

    def _body(self, tokenizer: Tokenizer, spec: RerankSpec) -> str:
        document = self.document
        if self.document_tokens is not None:
            ids = tokenizer.encode(_beginning(document, self.document_tokens, tokenizer), allow_special=False)
            document = tokenizer.decode(ids[: self.document_tokens], skip_special=False)
        return spec.body.format(instruction=self.instruction or spec.instruction, query=self.query, document=document)

    def _side_by_side(self, tokenizer: Tokenizer, spec: RerankSpec, limit: int) -> Ids:
        """The longer is cut first."""
        room = (self.keep or limit) - len(spec.begin_ids) - len(spec.middle_ids) - len(spec.end_ids)
        if room < 2:
            raise InvalidRequest("'truncate_prompt_tokens' leaves no token of the texts.", "truncate_prompt_tokens")
        texts = (_beginning(text, room, tokenizer) for text in (self.query, self.document))
        query, document = (tokenizer.encode(text, allow_special=False) for text in texts)
        document = document[: self.document_tokens]
        if self.keep is not None:
            query, document = _shortened(query, document, room)
        return (*spec.begin_ids, *query, *spec.middle_ids, *document, *spec.end_ids)


PooledInput = TextInput | IdsInput | Pair


def _shortened(query: Ids, document: Ids, room: int) -> tuple[Ids, Ids]:
    """Both in `room` tokens: of the longer the last tokens go until both are as long, then of both in turn."""
    shorter = min(len(query), len(document), room // 2)
    if len(query) > len(document):
        return query[: room - shorter], document[:shorter]
    return query[:shorter], document[: room - shorter]


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


def finished(raw: bytes, spec: PoolingSpec, dimensions: int | None = None) -> Vector:
    """The vector [D] of a text, of length 1 where the model's are. raw: float32, little-endian. dimensions: only so
    many first numbers, which then have length 1 again; None = all."""
    vector = np.frombuffer(raw, "<f4")
    if spec.normalise:
        vector = _of_length_one(vector)
    if dimensions is not None and dimensions < len(vector):
        vector = _of_length_one(vector[:dimensions])
    return vector


def score(raw: bytes, spec: RerankSpec) -> float:
    """How relevant a document is, 0 to 1. raw: the logits of yes and no, or the one number of a pair."""
    numbers = np.frombuffer(raw, "<f4").astype(np.float64)
    margin = float(numbers[0] - numbers[1] if spec.kind is RerankKind.JUDGE else numbers[0])
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else math.exp(margin) / (1 + math.exp(margin))


def _of_length_one(vector: Vector) -> Vector:
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length).astype("<f4") if length else vector
