"""Client connections: listeners, receive buffers, responses, and HTTP."""
