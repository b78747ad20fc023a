"""Opening a data directory after a clean stop, a kill or a power cut."""
