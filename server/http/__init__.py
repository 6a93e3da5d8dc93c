"""What lies below every route: errors and their formats, base classes of bodies, connections, requests in flight."""
