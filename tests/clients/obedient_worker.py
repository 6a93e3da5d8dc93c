"""The real worker over the obedient runtime. Started as `python -m tests.clients.obedient_worker <EngineConfig>`."""

import sys

from engine.worker.process import main
from tests.clients.obedient_runtime import ObedientRuntime

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ObedientRuntime))
