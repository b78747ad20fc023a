"""The deterministic world in which an unchanged cluster runs: time, network, disks and faults.

    world       virtual time, one queue of events, seeded chance, machines, fingerprint and story
    loop        the asyncio loop of one process;  workers: its threads
    network     links and partitions;  stream, transport: connections
    disk        faults of a disk;  inodes: what lies on it;  mount: the ``Files`` of a process
    isolation   the interpreter's clocks and dice, and doors that are shut
    faults      schedules as data;  injector: brings them upon a world;  shrink: makes them smaller
    damage      to disks at rest, and reading disks as a stranger would
    workload    aiokafka clients;  checker: what they were told, and whether it stays true
    plan, scenario                   one broker under faults;  bugs: bugs on purpose in its files
    cluster                          nodes on machines of their own;  supervisor: starts them again
    observer                         the metadata of all nodes is one history
    budget                        what may be lost at a time, and what is owed all the same
    cluster_plan, cluster_scenario   a cluster under faults;  cluster_workload: its clients
    cluster_flaws                    bugs on purpose in its code
    outcome, report, command         for people

Nothing imports this package.
"""
