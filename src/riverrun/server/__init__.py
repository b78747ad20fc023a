"""The node: ``node.py`` builds and runs it, ``main.py`` is the program."""
