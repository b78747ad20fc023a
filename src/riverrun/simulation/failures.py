"""Failures of a simulated run, and exceptions that end simulated code."""


class SimulationFailure(Exception):
    """An invariant was violated; the notes hold the seed and the virtual time."""


class SafetyViolation(SimulationFailure):
    """A safety promise was broken."""


class LivenessViolation(SimulationFailure):
    """The cluster did not recover in time after the faults stopped."""


class NodeFailure(SimulationFailure):
    """A node raised an exception that its own code did not handle."""


class BufferReused(SimulationFailure):
    """A node changed a buffer after ``write`` and before all of it was delivered."""


class EscapeError(RuntimeError):
    """Simulated code used a real resource, such as a thread, socket or file."""


class ProcessDied(BaseException):
    """Unwinds the code of a killed process; every further operation raises it again."""
