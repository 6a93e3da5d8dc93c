"""What a caller predicts the answer to be -> tokens, from which coming ones are guessed."""

from server.engine_seam import EngineLike
from server.protocol.chat_request import PredictedContent
from server.requests.messages import joined_text


async def predicted_tokens(prediction: PredictedContent | None, engine: EngineLike) -> tuple[int, ...]:
    """The tokens of a prediction, as far as an answer could get; none without one."""
    if prediction is None:
        return ()
    tokens = await engine.tokenize(joined_text(prediction.content), add_special=False)
    return tokens[: engine.info.max_context]
