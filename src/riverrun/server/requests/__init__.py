"""One module per API. ``handle(services, context, request)`` answers; Produce and Fetch read raw
frames.
"""
