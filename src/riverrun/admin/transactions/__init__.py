"""Open, ended and hanging transactions."""
