"""anthropic's SDK before 1, which many applications pin, judges the same."""

# checks of: anthropic_python

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[1] / "anthropic_python" / "checks.py"), run_name="__main__")
