"""Records of topics: which ones are read, and how they become text and back."""
