"""From the engine's deltas to the answers and chunks of the protocol. Imports no route and nothing of `requests`."""
