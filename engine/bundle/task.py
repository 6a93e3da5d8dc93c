"""What a bundle is for. Imported by the command line: nothing here may load another package."""

from enum import StrEnum


class ModelTask(StrEnum):
    """Which requests a bundle answers."""

    GENERATE = "generate"
    EMBED = "embed"  # vectors only: its graphs give no logits
    RERANK = "rerank"  # scores; a chat model that judges in words answers chats as well
