"""Refusals of the chat route's functions, said in the words of another format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine.errors import CallerError
from server.http.errors import Refusal


@contextmanager
def own_names(name_of: Callable[[str], str]) -> Iterator[None]:
    """What is refused inside names the field of this format. name_of: its name for a field of the chat route."""
    try:
        yield
    except CallerError as error:
        error.args, error.param = (_renamed(str(error), error.param, name_of),), _own(error.param, name_of)
        raise
    except Refusal as refusal:
        wire = refusal.error
        message = _renamed(wire.message, wire.param, name_of)
        raise Refusal(replace(wire, message=message, param=_own(wire.param, name_of))) from None


def _own(param: str | None, name_of: Callable[[str], str]) -> str | None:
    return None if param is None else name_of(param)


def _renamed(message: str, param: str | None, name_of: Callable[[str], str]) -> str:
    return message if param is None else message.replace(f"'{param}'", f"'{name_of(param)}'")
