"""What the world gives us (time, chance, files, a place for numbers), each with its real form.

The simulation has other forms of the same protocols; nothing above this package knows which it has.
"""
