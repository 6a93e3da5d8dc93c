"""The half of the engine that lives in the HTTP process: admission, token streams, and the supervisor of the worker."""
