"""Endpoint: the engine behind HTTP, and a client that measures any such server."""
