"""The simulated disks.

disk         capacity, delays, errors and power loss
inodes       files and directories with unsynced changes
mount        the ``Files`` port of a process
log_reader   reads the logs on a disk without the broker's code
"""
