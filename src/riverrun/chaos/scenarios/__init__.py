"""The scenarios.

scenario        what a scenario declares
arena           the verbs that scenarios use
replication     partition leaders and followers
quorum          controllers and metadata;  voter_changes: adding and removing voters
transactions    coordinators and clients of transactions
moves           partitions that move
catalog         all scenarios, and their selection by name
"""
