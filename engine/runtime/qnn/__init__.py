"""QNN: its libraries, what context binaries hold, the execution provider and its trial."""
