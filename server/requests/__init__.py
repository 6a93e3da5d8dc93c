"""From a body of the protocol to the engine's parameters; what cannot be honoured is refused here."""
