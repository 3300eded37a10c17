"""What a person sees while a run is at work: one live line on a terminal, plain lines elsewhere."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from flows.job import Job
from flows.job_file import load_job
from packing.manifest import load_manifest
from tasks.stages import BOARD, Stage
from training.length import plan_steps
from training.metrics_log import MetricsFollower
from training.rundir import RunDir

_REFRESH_S = 0.5
_PLAIN_EVERY_S = 10.0
_RECENT = 20  # steps over which speed and loss are told


@contextmanager
def progress(console: Console, started_s: float) -> Iterator[None]:
    """Show stages, steps and events of this process's work until the block ends.

    Args:
        console: where to show them; a terminal gets a live line.
        started_s: wall clock of the work's begin; older events are history and not told.
    """
    stop = threading.Event()
    display = _Display(console, started_s)
    thread = threading.Thread(target=display.loop, args=(stop,), daemon=True, name="progress")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Display:
    def __init__(self, console: Console, started_s: float) -> None:
        self._console = console
        self._started_s = started_s
        self._told: dict[RunDir, int] = {}
        self._total_steps: dict[RunDir, int] = {}
        self._metrics: dict[RunDir, tuple[MetricsFollower, deque[dict[str, Any]]]] = {}
        self._jobs: dict[RunDir, Job] = {}
        self._stage_names: list[str] = []
        self._next_plain_s = 0.0

    def loop(self, stop: threading.Event) -> None:
        """Refresh until told to stop, and once more after that."""
        live = Status("starting", console=self._console) if self._console.is_terminal else None
        if live:
            live.start()
        try:
            while not stop.wait(_REFRESH_S):
                self._refresh(live)
            self._refresh(live)
        finally:
            if live:
                live.stop()

    def _refresh(self, live: Status | None) -> None:
        stages = BOARD.stages()
        for run in {s.run for s in stages if s.run} | set(self._told):
            self._tell_events(run)
        if not stages:
            return
        line = "  ".join(self._describe(stage) for stage in stages)
        if live:
            live.update(line)
            return
        names = [stage.name for stage in stages]
        if names != self._stage_names or time.monotonic() >= self._next_plain_s:
            self._console.print(f"{self._clock()} {line}", highlight=False)
            self._stage_names = names
            self._next_plain_s = time.monotonic() + _PLAIN_EVERY_S

    def _describe(self, stage: Stage) -> str:
        if stage.name == "train" and stage.run:
            return self._training(stage.run)
        if stage.total:
            return f"[bold]{stage.name}[/] {stage.done}/{stage.total} {stage.unit}"
        return f"[bold]{stage.name}[/]"

    def _training(self, run: RunDir) -> str:
        follower, recent = self._metrics.setdefault(run, (MetricsFollower(run.metrics_file), deque(maxlen=_RECENT)))
        recent.extend(follower.new_rows())
        total = self._steps_of(run)
        if not recent:
            return f"[bold]train[/] {run.run_id}: starting, {total} steps"
        last = recent[-1]
        step_s = sum(r["step_s"] for r in recent) / len(recent)
        speed = sum(r["tokens_per_s"] for r in recent) / len(recent)
        loss = sum(r["loss"] for r in recent) / len(recent)
        left = timedelta(seconds=round((total - last["step"]) * step_s))
        return (
            f"[bold]train[/] {run.run_id}: step {last['step']}/{total}  loss {loss:.3f}  "
            f"{speed:,.0f} tokens/s  ETA {left}{self._deadline(run, left)}"
        )

    def _deadline(self, run: RunDir, left: timedelta) -> str:
        deadline = self._job_of(run).deadline
        if deadline is None:
            return ""
        late = datetime.now(deadline.tzinfo) + left - deadline
        return f" [red]({late} after the deadline)[/]" if late > timedelta(0) else " (in time)"

    def _job_of(self, run: RunDir) -> Job:
        if run not in self._jobs:
            self._jobs[run] = load_job(run.job_file)
        return self._jobs[run]

    def _steps_of(self, run: RunDir) -> int:
        if run not in self._total_steps:
            self._total_steps[run] = total_steps(run)
        return self._total_steps[run]

    def _tell_events(self, run: RunDir) -> None:
        events = run.events()
        for event in events[self._told.get(run, 0) :]:
            text = describe_event(event)
            if text and event["time_s"] >= self._started_s:
                self._console.print(f"{self._clock()} {run.run_id}: {text}", highlight=False)
        self._told[run] = len(events)

    def _clock(self) -> str:
        return f"[dim]{timedelta(seconds=int(time.time() - self._started_s))}[/]"


def total_steps(run: RunDir) -> int:
    """Optimizer steps of a prepared run from its first to its last."""
    job, manifest = load_job(run.job_file), load_manifest(run.inputs().dataset)
    return plan_steps(job.training, num_rows=manifest.rows, seq_len=manifest.seq_len).total_steps


def describe_event(event: dict[str, Any]) -> str:
    """An event in words, or an empty string for one that only machines care about."""
    scores = ", ".join(f"{k} {v:.2f}" for k, v in event.get("perplexity", {}).items() if "/" not in k)
    words = {
        "attempt_started": "attempt {attempt} started at step {step}",
        "attempt_attached": "attached to attempt {attempt}, which is still running",
        "attempt_hung": "attempt {attempt} hangs: no step within {limit_s:.0f} s",
        "checkpoint_committed": "checkpoint of step {step} committed",
        "checkpoint_failed": "[yellow]checkpoint of step {step} failed[/]",
        "final_checkpoint_lost": "[yellow]the last checkpoint cannot be used ({problem}); training again[/]",
        "checkpoint_damaged": "[red]checkpoint of step {step} is damaged: {problem}[/]",
        "evaluated": f"step {{step}}: perplexity {scores}",
        "evaluation_failed": "[yellow]evaluation of step {step} failed: {error}[/]",
        "publish_failed": "[yellow]publishing failed ({error}); it is tried again[/]",
        "job_changed": "settings of the job have changed since the last time",
        "stop_requested": "stopping: waiting for the last checkpoint",
        "tracking_failed": "[yellow]tracking is behind ({error}); nothing is lost, it is delivered later[/]",
        "tracking_recovered": "tracking caught up",
    }
    if event["event"] == "decision" and event["action"] == "restart":
        return f"[yellow]{escape(event['why'])}; starting again[/]"
    plain = {key: escape(value) if isinstance(value, str) else value for key, value in event.items()}
    return words.get(event["event"], "").format_map(plain)
