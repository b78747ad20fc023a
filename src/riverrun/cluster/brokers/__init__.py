"""Brokers and controllers as members of the cluster.

| module | subject |
|---|---|
| ``registration`` | BrokerRegistration, ControllerRegistration, UnregisterBroker |
| ``heartbeats`` | BrokerHeartbeat: the state machine of a broker |
| ``sessions`` | which brokers are alive; in memory only |
"""
