"""Consensus on one log, pure: an event and the time in, effects out (KIP-595, 630, 853, 996)."""
