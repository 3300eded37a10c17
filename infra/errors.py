class StayerError(Exception):
    """A failure a user can act on: what broke, where, the numbers; and the way out as a hint.

    The command line prints it as one readable line plus the hint, never as a traceback. Raised as it is,
    the work failed (exit code 1).
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


class InputError(StayerError):
    """The request was wrong: a job file, a path, a data file (exit code 2). Retrying cannot help."""


def _rebuild(kind: type[StayerError], message: str, hint: str) -> StayerError:
    return kind(message, hint=hint)
