"""The supervisor behind `riverrun up`: files, ports, processes, messages."""
