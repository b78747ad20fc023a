"""The cluster as a whole: health, settings, directories, elections, lag of replicas."""
