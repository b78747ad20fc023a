"""One module per API. ``handle(parts, context, request)`` answers; Produce and Fetch read raw
frames.
"""
