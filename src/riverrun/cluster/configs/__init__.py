"""Settings of topics, brokers and groups: validation, changes, and how clients see them."""
