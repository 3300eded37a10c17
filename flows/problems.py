"""Everything wrong with a request, told at once."""

from dataclasses import dataclass

from infra.errors import InputError


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a job file."""

    place: str
    """``file:line``, or the option that set the value."""
    key: str
    """Dotted path of the key, empty for the file as a whole."""
    message: str
    """What was found and what is accepted."""
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: {self.key}" if self.key else self.place
        return f"{where}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class JobFileError(InputError):
    """A job file that cannot be run, with all of its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listing = "\n".join(f"  {p}" for p in problems)
        super().__init__(f"{count} in the job:\n{listing}", hint="stayer validate JOB checks a job without running it")
