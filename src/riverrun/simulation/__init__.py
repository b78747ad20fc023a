"""The deterministic world in which an unchanged cluster runs: time, network, disks and faults.

    world       virtual time, one queue of events, seeded chance, machines, fingerprint and story
    loop        the asyncio loop of one process;  workers: its threads
    network     links and partitions;  stream, transport: connections
    disk        faults of a disk;  inodes: what lies on it;  mount: the ``Files`` of a process
    isolation   the interpreter's clocks and dice, and doors that are shut
    faults      schedules as data;  injector: brings them upon a world;  shrink: makes them smaller
    workload    aiokafka clients;  checker: what they were told, and whether it stays true
    scenario    one broker under faults;  flaws: bugs on purpose;  report, command: for people

Nothing imports this package.
"""
