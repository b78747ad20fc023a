"""The metadata log on its disk, as the quorum needs it."""
