"""From topics and files to typed rows."""
