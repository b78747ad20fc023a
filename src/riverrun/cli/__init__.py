"""The command line. It reaches a cluster through the Kafka protocol, as any client does."""
