"""``riverrun doctor``: checks a machine, a node and a cluster, and names what to do."""
