"""What every route shares: guard, body limits, merged streams, event frames, errors, metrics, access log, OpenAPI."""
