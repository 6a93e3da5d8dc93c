"""From a body of the protocol to what the engine is asked; what cannot be honoured is refused here."""
