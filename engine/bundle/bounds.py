"""What a manifest may say: a bound for every number, every text and every list, checked while it is read.

Whatever is larger is no model that exists, and would be asked for as memory.
"""

from typing import Annotated

from msgspec import Meta

Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
UnknownSize = Annotated[int, Meta(ge=0, le=1 << 24)]  # 0 where a Genie folder does not tell
Layers = Annotated[int, Meta(ge=1, le=1024)]
Heads = Annotated[int, Meta(ge=1, le=4096)]
HeadSize = Annotated[int, Meta(ge=2, le=4096)]
Vocabulary = Annotated[int, Meta(ge=1, le=1 << 24)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 16)]
Part = Annotated[int, Meta(ge=1, le=4096)]
Axis = Annotated[int, Meta(ge=0, le=1 << 31)]
Scale = Annotated[float, Meta(gt=0, le=1e30)]
Frequency = Annotated[float, Meta(ge=0, le=1e6)]
MAX_CACHE_BYTES_PER_TOKEN = 16 << 20  # 1 MiB serves the largest models there are
