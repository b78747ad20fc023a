"""The metadata quorum over the network: connections and wire messages."""
