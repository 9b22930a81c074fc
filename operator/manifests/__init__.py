"""What the API server should hold for a cluster: pure functions from its spec to objects, tested without a cluster."""
