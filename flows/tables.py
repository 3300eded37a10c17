"""Tables for people: the end of a run, the list of runs, the checkpoints of one."""

from rich.table import Table

from eval.summary import Summary
from training.checkpoint_manifest import CheckpointManifest


def summary_table(summary: Summary) -> Table:
    """The short table at the end of a run."""
    table = Table(title=f"{summary.run}: {summary.outcome}", show_header=False, title_justify="left", box=None)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("tokens", f"{summary.tokens:,} in {summary.steps:,} steps, {summary.attempts} attempt(s)")
    if summary.loss_start is not None and summary.loss_end is not None:
        table.add_row("loss", f"{summary.loss_start:.3f} → {summary.loss_end:.3f}")
    if summary.tokens_per_s is not None:
        table.add_row("speed", f"{summary.tokens_per_s:,.0f} tokens/s")
    for role in ("domain", "general"):
        scores = [(step, by[role]) for step, by in sorted(summary.perplexity.items()) if role in by]
        if scores:
            table.add_row(f"{role} perplexity", " → ".join(f"{value:.2f}" for _, value in scores))
    table.add_row("checkpoints", ", ".join(f"{step:,}" for step in summary.checkpoints) or "none")
    stages = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.stage_seconds.items())
    table.add_row("time", f"{summary.elapsed_s:.0f} s, of it orchestration {summary.orchestration_s:.0f} s")
    table.add_row("stages", stages)
    if summary.model:
        table.add_row("model", summary.model)
    if summary.report:
        table.add_row("report", summary.report)
    return table


def runs_table(summaries: list[Summary]) -> Table:
    """All runs, one a line."""
    table = Table("run", "state", "steps", "tokens", "loss", "attempts", box=None, header_style="dim")
    for one in summaries:
        loss = f"{one.loss_end:.3f}" if one.loss_end is not None else ""
        table.add_row(one.run, one.outcome, f"{one.steps:,}", f"{one.tokens:,}", loss, str(one.attempts))
    return table


def checkpoints_table(run: str, checkpoints: list[CheckpointManifest]) -> Table:
    """The committed checkpoints of a run."""
    table = Table("step", "tokens", "loss", "size", "healthy", box=None, header_style="dim", title=run)
    for one in checkpoints:
        size = f"{one.size_bytes / 2**20:,.1f} MiB"
        table.add_row(f"{one.step:,}", f"{one.tokens:,}", f"{one.metrics['loss']:.4f}", size, str(one.healthy))
    return table
