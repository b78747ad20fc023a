"""The follower side of replication: fetching from leaders, truncation and retries."""
