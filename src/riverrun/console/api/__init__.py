"""The endpoints of the REST API, by subject."""
