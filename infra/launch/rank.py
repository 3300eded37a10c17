"""What torchrun starts for every rank: gives it a log file of its own, then runs the module it is asked to run.

torchrun's own redirection splits a rank's output over two files in a folder with a random name.
"""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """``python -m infra.launch.rank LOG_FOLDER MODULE ARGUMENTS…``."""
    folder, module, *arguments = sys.argv[1:]
    log = os.open(Path(folder) / f"rank-{os.environ['RANK']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):  # below Python, so that what C++ prints is caught too
        os.dup2(log, stream)
    os.close(log)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
