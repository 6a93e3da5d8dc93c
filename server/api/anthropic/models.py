"""The list of models in Anthropic's form: pages of it, by the ids that stand around a page."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from server.api.openai.models import Model
from server.http.errors import echo, refuse
from server.http.fields import Answer


class AnthropicModel(Answer, kw_only=True):
    """One model, or one of its adapters. created_at: RFC 3339. The token limits are the context window."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModelPage(Answer):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


DEFAULT_LIMIT, MOST = 20, 1000


def anthropic_model(model: Model) -> AnthropicModel:
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(
        id=model.id,
        display_name=model.id,
        created_at=created,
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )


def anthropic_page(models: Sequence[Model], asked: Mapping[str, str]) -> AnthropicModelPage:
    """A page of all models. asked: the query's `limit`, `after_id` and `before_id`; raises Refusal naming one."""
    found = [anthropic_model(model) for model in models]
    names = [model.id for model in found]
    text = asked.get("limit", str(DEFAULT_LIMIT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
    if not 1 <= limit <= MOST:
        raise refuse(f"Invalid 'limit': {echo(text)} is no number from 1 to {MOST}.", "limit", "invalid_value")
    if "before_id" in asked:
        before = found[: _place("before_id", asked["before_id"], names)]
        page, rest = before[-limit:], len(before) > limit
    else:
        after = found[_place("after_id", asked["after_id"], names) + 1 :] if "after_id" in asked else found
        page, rest = after[:limit], len(after) > limit
    ends = (page[0].id, page[-1].id) if page else (None, None)
    return AnthropicModelPage(data=page, has_more=rest, first_id=ends[0], last_id=ends[1])


def _place(field: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise refuse(f"Invalid '{field}': there is no model {echo(name)}.", field, "invalid_value")
    return names.index(name)
