"""Facts that only this node knows: history, traffic, clients, and the metadata log.

- ``series``: values over time in a ring; ``history``: the series of a node; ``sampler`` fills them.
- ``traffic``: mean rates of the last minutes, for plans and placement.
- ``connections``: the clients that are connected now.
- ``metadata_events``: metadata records in words; ``timeline`` reads them, ``metadata_diff``
  compares the metadata of two offsets.
- ``node_facts``: all of these, as the request DescribeNode asks for them.
"""
