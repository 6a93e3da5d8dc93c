"""A chat body on its way to the engine: checked, then rendered, tokenised and given its grammar."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from engine.bundle.answer_format import AnswerFormat
from engine.errors import CallerError, ContextLengthExceeded
from engine.request import ImagePrompt, ids_of
from server.generation.chat_request import ChatRequest
from server.generation.chat_template import Thinking, chat_tools, thinking_after, thinking_budget
from server.generation.launch import Service, until_left
from server.generation.params import GenerationParams, chat_params, predicted_tokens
from server.generation.parsing import PLAIN, AnswerParser, ParsedChoice
from server.generation.structured_output import AnswerForm, chat_form
from server.http.errors import Refusal


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """What `Service.launch` takes, and how the answer is taken apart."""

    prompt: tuple[int, ...] | ImagePrompt
    params: GenerationParams
    thinking: Thinking
    answer: AnswerFormat | None
    tools: list[dict[str, Any]] | None

    def parsed_choices(self) -> list[ParsedChoice]:
        thinking, answer, may_call = self.thinking, self.answer or PLAIN, self.tools is not None
        functions = [tool["function"] for tool in self.tools or ()]
        schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        is_plain = not may_call and answer.content is None
        form, prefilled = (PLAIN, "") if is_plain else (answer, thinking.prefilled)
        told = (form, may_call, schemas, prefilled, thinking.markers, thinking.is_open)
        return [ParsedChoice(AnswerParser(*told)) for _ in range(self.params.choices)]


async def prepared_chat(
    request: Request,
    service: Service,
    body: ChatRequest,
    messages: Callable[[], Sequence[Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> PreparedChat:
    """Render and tokenise the messages, and compile the grammar of the answer's form.
    messages, options: what the chat template reads; the messages are made once the body is checked and admitted. Raises
    CallerError and Refusal naming a field, Busy, ClientLeft."""
    engine, (params, tools, form) = service.engine, _checked(body, service)
    prompt = await until_left(request, service.chat_prompt(messages(), tools, options, params.keep))
    prediction = await until_left(request, predicted_tokens(body.prediction, engine))
    thinking = thinking_after(ids_of(prompt), engine)
    budget = thinking_budget(body.thinking_token_budget, thinking, engine)
    params = replace(params.sampled(thinking_budget=budget), prediction=prediction)
    params = await until_left(request, service.constrained(params, form, thinking))
    return PreparedChat(prompt, params, thinking, service.writes, tools)


async def prepared_text(request: Request, service: Service, body: ChatRequest, text: str) -> PreparedChat:
    """The same for a prompt that no chat template renders: all that follows it is plain text."""
    params, _, form = _checked(body, service)
    prompt = await until_left(request, service.engine.text_prompt(text, params.keep))
    params = await until_left(request, service.constrained(params, form))
    return PreparedChat(prompt, params, Thinking(None), None, None)


def _checked(
    body: ChatRequest, service: Service
) -> tuple[GenerationParams, list[dict[str, Any]] | None, AnswerForm | None]:
    params = chat_params(body, service.engine, service.settings)
    service.admit(params.choices)
    tools = chat_tools(body, service.writes)
    return params, tools, chat_form(body, service.writes if tools is not None else None)


@contextmanager
def field_aliases(name_of: Callable[[str], str]) -> Iterator[None]:
    """What is refused inside names the field of this format. name_of: its name for a field of the chat route."""

    def renamed(message: str, param: str | None) -> tuple[str, str | None]:
        if param is None:
            return message, None
        return message.replace(f"'{param}'", f"'{name_of(param)}'"), name_of(param)

    try:
        yield
    except ContextLengthExceeded as error:
        raise error.named(name_of(error.param or "messages")) from None
    except CallerError as error:
        message, error.param = renamed(str(error), error.param)
        error.args = (message,)
        raise
    except Refusal as refusal:
        message, param = renamed(refusal.error.message, refusal.error.param)
        raise Refusal(replace(refusal.error, message=message, param=param)) from None
