"""Messages of riverrun's own APIs, in the form of the generated ones."""
