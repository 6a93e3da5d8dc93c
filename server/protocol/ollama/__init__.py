"""Bodies and answers of the routes under /api, which speak Ollama's format. Imports nothing else of ours."""
