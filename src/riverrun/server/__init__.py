"""The node: builds the parts, listens, and answers requests. ``broker.py`` alone knows all
parts.
"""
