"""A consumer group whose members are processes, so that they can be killed.

- ``member.py``: one member of confluent-kafka, with the classic or the consumer protocol
- ``load.py``: starts, stops and kills the members of a scenario
"""
