"""The inference engine. Importing the package loads nothing: a re-export here would drag the client into the worker."""
