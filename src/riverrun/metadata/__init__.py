"""Cluster metadata: a log of records, the image they produce, its deltas and its snapshots.

``delta`` is the only module that changes metadata. ``image`` is the immutable result, ``images``
the chain from the published image to the newest written one. ``metadata_log`` is the log of a node,
``log_store`` its files, ``publisher`` makes committed images visible, ``snapshotter`` writes
snapshots.
"""
