"""Token counts in the answers of chats and completions."""

from server.protocol.fields import Answer


class PromptDetails(Answer):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Completion tokens spent on reasoning; of a request with a prediction, its tokens that were right and wrong."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(Answer):
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
