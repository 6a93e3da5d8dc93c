"""From the engine's deltas to the answers and chunks of the protocol."""
