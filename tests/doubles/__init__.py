"""Stand-ins for the outside world: a scripted backend, a network that breaks, the proxy as a
process, a client that checks every event."""
