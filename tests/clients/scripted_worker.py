"""The real worker over the scripted runtime. Started as `python -m tests.clients.scripted_worker <EngineConfig>`."""

import sys

from engine.worker.process import main
from tests.clients.scripted_runtime import ScriptedRuntime

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ScriptedRuntime))
