"""Following leaders: what is fetched from whom, what is cut off, and what is tried again."""
