"""Programs that run in the environments of other servers, by themselves."""
