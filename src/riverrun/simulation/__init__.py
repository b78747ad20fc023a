"""Deterministic simulation of an unmodified cluster: virtual time, network, disks and faults.

    world        virtual time, event queue, seeded randomness, machines, fingerprint and story
    loop         the asyncio event loop of one process
    threads      its thread pools
    isolation    replaces the interpreter's clock, randomness and logs, and forbids real resources
    ordered_set  the sets of client libraries
    cluster      nodes on simulated machines
    supervisor   restarts processes
    net          the network between machines
    disks        the disks of machines
    faults       fault schedules and their injection
    workloads    what a run consists of: plans, clients and scenarios
    checks       the invariants that every run must keep
    planted      bugs that the simulation must find
    report       runs seeds and describes the outcome
    command      ``riverrun simulate``

No other package imports this one.
"""
