"""Anthropic's format: the bodies of /v1/messages and of the list of models, as their SDKs send and read them."""
