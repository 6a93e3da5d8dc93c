"""The routes: a folder for each API, and the routes that belong to none. A route never imports a route."""
