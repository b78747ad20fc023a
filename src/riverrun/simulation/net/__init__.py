"""The simulated network: links, streams, transports."""
