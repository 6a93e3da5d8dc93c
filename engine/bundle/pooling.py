"""How a bundle that is no chat model makes a vector of a text, or a score of a query and a document."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Text, TokenId, Vocabulary

Ids = Annotated[tuple[TokenId, ...], Meta(max_length=64)]


class PoolingKind(StrEnum):
    """Which rows of a text its vector is made of."""

    LAST = "last"  # the last one


class PoolingSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a text becomes a vector.

    dimensions: numbers of a whole vector. normalise: whether it has length 1. may_cut: whether its first numbers alone
    are a vector as well (Matryoshka). begin_ids, end_ids: around the tokens of every text. prompts: what may stand in
    front of a text, by name; default_prompt: the name of what stands there when nothing is asked for, "" = nothing.
    """

    kind: PoolingKind
    dimensions: Vocabulary
    normalise: bool = True
    may_cut: bool = True
    begin_ids: Ids = ()
    end_ids: Ids = ()
    prompts: Annotated[dict[Text, Text], Meta(max_length=64)] = {}
    default_prompt: Text = ""


class RerankKind(StrEnum):
    """How a document is scored."""

    JUDGE = "judge"  # a chat model says yes or no: the share of yes in the probability of both
    PAIR = "pair"  # an encoder reads query and document as a pair and gives one number


class RerankSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a query and a document become a score.

    A judge reads prefix, body and suffix, each tokenised by itself; body has {instruction}, {query} and {document}.
    instruction: for requests that bring none. yes_id, no_id: tokens of the judgement.
    """

    kind: RerankKind
    prefix: Text = ""
    body: Text = ""
    suffix: Text = ""
    instruction: Text = ""
    yes_id: TokenId = 0
    no_id: TokenId = 0
