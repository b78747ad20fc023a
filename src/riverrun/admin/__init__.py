"""What an administrator does to a cluster, through the Kafka protocol.

The command line and the console use it. Functions take a connection pool and return values;
nothing here prints, or knows a terminal.
"""
