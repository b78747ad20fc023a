"""This node's member of the metadata quorum, over the network."""
