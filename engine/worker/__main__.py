"""`python -m engine.worker <EngineConfig as JSON> [label of its log lines]`: the worker process."""

import sys

from engine.worker.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
