"""Consensus on one log, without I/O: an event and the time in, effects out (KIP-595, 630, 853,
996).

``core`` is the state machine of one quorum member. ``elections``, ``leading``, ``following`` and
``changes`` hold the rules by subject, ``states`` the roles and their transitions, ``member`` the
state they share. ``driver`` executes the effects.
"""
