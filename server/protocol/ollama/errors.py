"""The body of every answer under /api that is not a success."""

from server.protocol.fields import Answer


class OllamaError(Answer):
    """What went wrong, in a sentence; also the last line of a stream that cannot go on."""

    error: str
