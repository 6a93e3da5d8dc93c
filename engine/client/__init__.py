"""The half of the engine that lives in the HTTP process: admission, streams of tokens, and the worker kept alive."""
