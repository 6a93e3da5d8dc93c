"""Load generator for servers that speak the OpenAI streaming API."""
