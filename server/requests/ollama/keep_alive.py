"""`keep_alive`: how long a model stays loaded after an answer. Numbers are seconds, texts are Go's durations."""

import re

from server.http.errors import echo, refuse

UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:(?:{_NUMBER})|(?:(?:{_NUMBER})(?:ns|us|µs|ms|s|m|h))+)", re.ASCII)


def kept_s(keep_alive: float | str | None) -> float | None:
    """Seconds, below zero for ever; None when nothing was said. Raises Refusal for a text that is no duration."""
    if not isinstance(keep_alive, str):
        return keep_alive
    if not _DURATION.fullmatch(keep_alive):
        message = f"Invalid 'keep_alive': {echo(keep_alive)} is neither seconds nor a duration such as '5m' or '1h30m'."
        raise refuse(message, "keep_alive", "invalid_value")
    sign = -1.0 if keep_alive.startswith("-") else 1.0
    parts = _PART.findall(keep_alive)
    if not parts:
        return float(keep_alive)
    return sign * sum(float(number) * UNITS_S[unit] for number, unit in parts)
