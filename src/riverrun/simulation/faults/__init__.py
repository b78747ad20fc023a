"""Faults of a simulated run.

schedule        faults as data, drawn from a seed
injector        applies a schedule to a world
damage_budget   decides which nodes may lose data without breaking a promise
shrinker        finds the smallest schedule that still fails
"""
