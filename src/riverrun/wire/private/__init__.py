"""Messages of our own APIs, written by hand in the form of the generated ones."""
