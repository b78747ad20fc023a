"""The simulated network.

network     links between machines, partitions and delays
stream      one direction of a connection
transport   the asyncio transports and servers on top
"""
