"""The error tree.

Every error that a user can cause says what was got, what is allowed and what to do, and ends the program with
its own exit code. A `LocoError` is printed as a message; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations


class LocoError(Exception):
    """Base of all errors with a message for the user.

    Args:
        problem: one sentence: what is wrong, and where.
        got: what was found.
        allowed: what would have been right.
        fix: what to do now.
    """

    exit_code = 1

    def __init__(self, problem: str, *, got: object = None, allowed: object = None, fix: str | None = None) -> None:
        self.problem = problem
        self.got = got
        self.allowed = allowed
        self.fix = fix
        super().__init__(self.message())

    def message(self) -> str:
        """The problem and, a line each, what was got, what is allowed, what to do."""
        lines = [self.problem]
        labelled = (("got", self.got), ("allowed", self.allowed), ("to do", self.fix))
        lines += [f"  {label}: {value}" for label, value in labelled if value is not None]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in tests and launchers; keyword arguments would be lost by the default.
        return _rebuild, (type(self), self.problem, self.got, self.allowed, self.fix)


def _rebuild(cls: type[LocoError], problem: str, got: object, allowed: object, fix: str | None) -> LocoError:
    return cls(problem, got=got, allowed=allowed, fix=fix)


class ConfigError(LocoError):
    """A setting, or a combination of settings, that cannot work."""

    exit_code = 2


class DataError(LocoError):
    """Text, token or tokenizer files that are missing, damaged or do not fit each other."""

    exit_code = 3


class CheckpointError(LocoError):
    """A checkpoint that is missing, damaged, foreign or does not fit the run; or that could not be written."""

    exit_code = 4


class EnvironmentProblem(LocoError):
    """The machine lacks what the run needs: a GPU, a port, a package, free space."""

    exit_code = 5


class TransportError(LocoError):
    """An exchange between islands failed; nothing of it was applied."""

    exit_code = 6


class FailedElsewhere(TransportError):
    """Another island could not go on, so this one does not: the cause is told there."""


class DeadlineExceeded(TransportError):
    """The other islands did not answer within the deadline."""


class PeerLost(TransportError):
    """The connection to another island broke."""


class IslandMismatch(LocoError):
    """Islands that do not fit each other: another model, method, tokenizer, data or other initial weights."""

    exit_code = 7


class NonFinite(LocoError):
    """NaN or infinity in what an island would send; refused before it reaches another island."""

    exit_code = 8


class ConversionError(LocoError):
    """A model that cannot be converted to or from a foreign format."""

    exit_code = 9
