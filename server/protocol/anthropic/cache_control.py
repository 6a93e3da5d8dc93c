"""Where a prefix ends that another server would keep; here every prefix is kept."""

from typing import Literal

from server.protocol.fields import Body


class CacheControl(Body):
    """A hint on a block, a tool or a whole request."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
