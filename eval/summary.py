"""What a run achieved, in numbers, read from its run directory alone."""

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from infra import storage
from training.checkpoint_manifest import list_checkpoints
from training.rundir import RunDir

Interval = tuple[float, float]
_WORK = {"tokenizer", "hash sources", "tokenize", "pack", "manifest", "train", "evaluate", "export"}
"""Stages that do the work itself; the rest of the wall time is orchestration."""


class Summary(BaseModel, frozen=True):
    """The short table at the end of a run."""

    run: str
    outcome: str
    steps: int
    tokens: int
    """Effective tokens trained on, padding not counted."""
    loss_start: float | None
    """Mean loss of the first tenth of the steps."""
    loss_end: float | None
    """Mean loss of the last tenth of the steps."""
    tokens_per_s: float | None
    """Median over the steps, all ranks together."""
    attempts: int
    checkpoints: list[int]
    """Steps of the committed checkpoints that are kept."""
    perplexity: dict[int, dict[str, float]]
    """By step (0: the starting model) and role or source."""
    stage_seconds: dict[str, float]
    """Time in each stage, over all sessions; stages may overlap."""
    elapsed_s: float
    """Wall time in which a campaign was at work."""
    orchestration_s: float
    """Part of it in which no stage was working: servers, flows, tracking, report."""
    model: str | None
    report: str | None


def summarize(run: RunDir) -> Summary:
    """Collect the figures of a run."""
    rows = run.metrics()
    tenth = max(1, len(rows) // 10)
    marks = [e for e in run.events() if e["event"] in ("campaign_started", "campaign_finished")]
    active = _active(run.events())
    seconds: dict[str, float] = {}
    for name, (start, end) in _stages(run):
        seconds[name] = seconds.get(name, 0.0) + end - start
    base = _base_of(run)
    if base is not None:
        seconds["base model"] = _length([i for name, i in _stages(base) if name in _WORK])
    elapsed_s = _length(active)
    done = [*_stages(run), *(_stages(base) if base else [])]
    working_s = _length([part for name, i in done if name in _WORK for part in _within(i, active)])
    report = run.path / "report.html"
    return Summary(
        run=run.run_id,
        outcome=marks[-1].get("outcome", "running") if marks else "new",
        steps=int(rows[-1]["step"]) if rows else 0,
        tokens=int(rows[-1]["tokens"]) if rows else 0,
        loss_start=_mean([r["loss"] for r in rows[:tenth]]),
        loss_end=_mean([r["loss"] for r in rows[-tenth:]]),
        tokens_per_s=sorted(r["tokens_per_s"] for r in rows)[len(rows) // 2] if rows else None,
        attempts=len(run.attempts()),
        checkpoints=[c.step for c in list_checkpoints(run)],
        perplexity=perplexities(run),
        stage_seconds=seconds,
        elapsed_s=elapsed_s,
        orchestration_s=max(0.0, elapsed_s - working_s),
        model=str(run.model) if run.model.is_dir() else None,
        report=str(report) if report.exists() else None,
    )


def perplexities(run: RunDir) -> dict[int, dict[str, float]]:
    """Scores of every evaluated checkpoint, by step."""
    results = [storage.read_json(str(f)) for f in sorted(run.evaluations.glob("step-*.json"))]
    return {int(r["step"]): dict(r["perplexity"]) for r in results}


def _stages(run: RunDir) -> list[tuple[str, Interval]]:
    """Every stage with its time; an attempt trains from its launch to its last word."""
    stages = [(e["stage"], (e["started_s"], e["time_s"])) for e in run.events("stage_finished")]
    for attempt in run.attempts():
        record = run.exit_record(attempt.number)
        if record is not None:
            stages.append(("train", (attempt.started_s, record.time_s)))
    return stages


def _base_of(run: RunDir) -> RunDir | None:
    """The run whose final model this one continues, if it was one of ours."""
    inputs = run.inputs() if (run.path / "inputs.json").exists() else None
    folder = Path(inputs.model).parent if inputs and inputs.model else None
    return RunDir(folder) if folder and (folder / "job.yaml").is_file() else None


def _active(events: list[dict[str, Any]]) -> list[Interval]:
    """Spans from each start of the campaign to its end, or to the last thing heard of it."""
    spans: list[Interval] = []
    start = last = None
    for event in events:
        if event["event"] == "campaign_started":
            if start is not None and last is not None:
                spans.append((start, last))
            start = event["process_started_s"]
        last = event["time_s"]
        if event["event"] == "campaign_finished" and start is not None:
            spans.append((start, event["time_s"]))
            start = None
    if start is not None and last is not None:
        spans.append((start, last))
    return spans


def _within(interval: Interval, spans: list[Interval]) -> list[Interval]:
    """The parts of an interval that lie in disjoint spans."""
    cut = [(max(interval[0], start), min(interval[1], end)) for start, end in spans]
    return [(start, end) for start, end in cut if start < end]


def _length(intervals: list[Interval]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
