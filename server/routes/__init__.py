"""One file a path: take the request, ask `requests`, submit, answer with a writer. A route never imports a route."""
