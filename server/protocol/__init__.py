"""Request bodies and answers as pydantic models, a file for each side of each format. Imports nothing else of ours."""
