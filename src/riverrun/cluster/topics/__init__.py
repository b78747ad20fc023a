"""Topics.

| module | subject |
|---|---|
| ``create_topics``, ``delete_topics`` | the APIs of these names |
| ``auto_creation`` | topics that are created on first use |
| ``names`` | valid topic names, internal topics |
"""
