"""How a handler ends when there is no answer to give."""


class CloseConnection(Exception):
    """The connection must end; the text goes to the node's log."""
