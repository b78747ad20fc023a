"""The simulated disk: page cache, directories, faults."""
