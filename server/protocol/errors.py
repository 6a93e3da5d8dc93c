"""The body of every answer that is not a success."""

from server.protocol.fields import Answer


class ErrorDetail(Answer):
    """What went wrong; `param` is the dotted path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """The body of every answer that is not a success."""

    error: ErrorDetail
