"""The ways in which a simulated run fails."""


class SimulationFailure(Exception):
    """Something that must not happen did; the message says what, the notes say when."""


class SafetyViolation(SimulationFailure):
    """A promise was broken."""


class LivenessViolation(SimulationFailure):
    """No promise was broken, but the cluster did not come back when the faults had stopped."""


class NodeFailure(SimulationFailure):
    """A node's own code failed: an exception that nobody caught."""


class BufferReused(SimulationFailure):
    """A node changed memory that it had given to ``write`` before all of it was delivered."""


class EscapeError(RuntimeError):
    """Simulated code reached for something that only the real world has."""


class ProcessDied(BaseException):
    """Unwinds the code of a process that was killed; whatever it still tries fails the same."""
