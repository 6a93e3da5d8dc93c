"""Which variables a request may give its chat template."""

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest

ALLOWED_OPTIONS: dict[str, tuple[type, ...]] = {
    "add_generation_prompt": (bool,),
    "enable_thinking": (bool,),
    "thinking": (bool,),
    "preserve_thinking": (bool,),
    "reasoning_effort": (str,),
    "verbosity": (str,),
    "date_string": (str,),
}
LONGEST_OPTION_CHARS = 64


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one request; InvalidRequest for a name that is not in the list or a wrong type."""
    for name, value in options.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name not in ALLOWED_OPTIONS:
            raise InvalidRequest(
                f"'{param}' is not supported; supported are {', '.join(sorted(ALLOWED_OPTIONS))}.", param
            )
        kinds = ALLOWED_OPTIONS[name]
        if not isinstance(value, kinds):
            raise InvalidRequest(f"'{param}' must be {kinds[0].__name__}, not {type(value).__name__}.", param)
        if isinstance(value, str) and len(value) > LONGEST_OPTION_CHARS:
            raise InvalidRequest(f"'{param}' is longer than {LONGEST_OPTION_CHARS} characters.", param)
    return dict(options)
