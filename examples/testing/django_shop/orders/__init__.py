"""The application: a view that writes orders to a topic, and a consumer that stores them."""
