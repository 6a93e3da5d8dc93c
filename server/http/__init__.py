"""What every route shares on its way in and out: guard, body limits, errors, frames, metrics, the access log."""
