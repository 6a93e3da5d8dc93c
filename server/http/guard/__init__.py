"""What stands between the socket and the routes: hosts, origins, keys, rates, sizes."""
