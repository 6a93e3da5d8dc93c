"""Run `published_suite.py` and print as JSON what became of each test."""

import json
import os
from pathlib import Path

from standard_tests import outcomes

SUITE = Path(__file__).with_name("published_suite.py")

if __name__ == "__main__":
    os.environ["LANGSMITH_TRACING"] = "false"
    found = outcomes(SUITE).found  # what became of it, and why
    print()
    print(json.dumps({name.partition("::")[2]: outcome for name, (outcome, _) in found.items()}))
