"""One module for each API: ``handle(services, context, request)`` returns the response. Produce and
Fetch have ``handle_frame`` and parse the frame themselves.
"""
