"""The HTTP API: routes and their documentation, problems, health, metrics, and the server that runs them."""
