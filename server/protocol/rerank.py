"""Body and answer of POST /v1/rerank: the form of Jina, Cohere and vLLM."""

from typing import Annotated

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.embeddings import PooledUsage, Truncation
from server.protocol.fields import MAX_TOKENS, Answer, Body, Name, Priority, User, text_or_object

MAX_DOCUMENTS = 2048


class DocumentText(Body):
    """A document as an object."""

    text: str


Document = Annotated[
    Annotated[str, Tag("text")] | Annotated[DocumentText, Tag("object")], Discriminator(text_or_object)
]
Positive = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class RerankRequest(Body):
    """POST /v1/rerank. `instruction`: what makes a document fit, for models that are told in words."""

    model: Name
    query: Annotated[str, StringConstraints(min_length=1)]
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    top_n: Positive | None = None
    return_documents: bool | None = None
    instruction: Annotated[str, StringConstraints(max_length=4096)] | None = None
    max_tokens_per_doc: Positive | None = None
    truncate_prompt_tokens: Truncation | None = None
    priority: Priority | None = None
    user: User | None = None

    @property
    def texts(self) -> list[str]:
        """The documents as texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


class RankedDocument(Answer):
    """The document as it was given."""

    text: str


class Ranked(Answer):
    """The score of one document, 0 to 1; index in the request. No document when `return_documents` is false."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class Ranking(Answer):
    """Answer of POST /v1/rerank, best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage
