"""A probe that writes given steps and then ends as it is told."""

import json
import sys


def scripted_probe(*steps: tuple[str, bool, str], end: str = "") -> tuple[str, ...]:
    """The command line of a probe; end: Python to run after the last step."""
    lines = [json.dumps({"step": step, "ok": ok, "text": text}) for step, ok, text in steps]
    return (sys.executable, "-c", f"print({chr(10).join(lines)!r}, flush=True); {end or 'pass'}")
