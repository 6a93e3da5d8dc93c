"""A chat body on its way to the engine, the same for every format that is a chat."""
