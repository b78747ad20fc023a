"""Brokers and controllers as members of the cluster.

| module | subject |
|---|---|
| ``registration`` | BrokerRegistration, ControllerRegistration, UnregisterBroker |
| ``heartbeats`` | BrokerHeartbeat: the state machine of a broker |
| ``modes`` | brokers that should lead nothing, or be emptied |
| ``retirement`` | decommissioned brokers that died are unregistered |
| ``sessions`` | which brokers are alive; in memory only |
"""
