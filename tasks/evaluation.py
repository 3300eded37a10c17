"""Scoring checkpoints in a process of its own, so that evaluation can never change training."""

import os
import subprocess
import sys
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from eval.identity import known_scores
from infra import storage
from infra.errors import StayerError
from tasks.stop import STOP, StoppedError
from training.rundir import RunDir

_POLL_S = 0.2


@task(name="evaluate", task_run_name="evaluate-step-{step}", cache_policy=NO_CACHE)
def evaluate(run_dir: str, step: int) -> dict[str, float]:
    """Score one checkpoint (step 0: the starting model) on the held-out documents, or find it scored.

    Returns:
        Perplexity by role and by source, as in the evaluation file; empty when nothing is held out.

    Raises:
        StayerError: the evaluator failed; its log is named.
    """
    run = RunDir(Path(run_dir))
    known = known_scores(run, step)
    if known is not None:
        return known
    log_file = run.evaluations / f"step-{step:08d}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        command = [sys.executable, "-m", "eval.worker", str(run.path), str(step)]
        env = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        code = _wait(process)
    if code != 0:
        last = log_file.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise StayerError(f"evaluation of step {step} failed (exit code {code}): {last[0]}", hint=f"see {log_file}")
    scores: dict[str, float] = storage.read_json(str(run.evaluation(step)))["perplexity"]
    return scores


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Exit code of the evaluator, which a stop request or a signal to this process ends."""
    try:
        while (code := process.poll()) is None:
            if STOP.wait(_POLL_S):
                raise StoppedError("the evaluation was stopped on request")
        return code
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
