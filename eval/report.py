"""The evaluation report: one HTML page that needs nothing but a browser."""

import html
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from eval.summary import Summary, perplexities, summarize
from infra import storage
from training.rundir import RunDir

_ROLES = {"domain": "#1f6feb", "general": "#bf8700"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1120px; padding: 0 1rem; color: #1f2328; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } p { color: #59636e; }
table { border-collapse: collapse; } td, th { padding: .25rem 1.25rem .25rem 0; text-align: left; }
th { font-weight: 600; border-bottom: 1px solid #d1d9e0; } td.n, th.n { text-align: right; }
"""


def write_report(run: RunDir) -> Path:
    """Write `report.html` into the run directory: curves, perplexity per checkpoint, stages, incidents."""
    summary = summarize(run)
    figure = _curves(run).to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False})
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(run.run_id)}</title><style>{_STYLE}</style></head>
<body>
<h1>{html.escape(run.run_id)}</h1>
<p>{_headline(summary)}</p>
{figure}
<h2>Perplexity on held-out documents</h2>
{_perplexity_table(summary)}
<h2>Time</h2>
{_table(["stage", "seconds"], [[k, f"{v:.1f}"] for k, v in summary.stage_seconds.items()])}
<h2>Attempts</h2>
{_table(["attempt", "from step", "to step", "ended", "why"], _attempt_rows(run))}
</body></html>
"""
    file = run.path / "report.html"
    storage.write_text(str(file), page)
    return file


def _curves(run: RunDir) -> go.Figure:
    rows = run.metrics()
    steps = [row["step"] for row in rows]
    titles = ("Training loss", "Learning rate", "Throughput (tokens/s)", "Perplexity per checkpoint")
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.14, horizontal_spacing=0.09)
    panels = [("loss", 1, 1, "#8250df"), ("learning_rate", 1, 2, "#1a7f37"), ("tokens_per_s", 2, 1, "#59636e")]
    for key, row, column, colour in panels:
        line = go.Scatter(x=steps, y=[r[key] for r in rows], mode="lines", line={"color": colour, "width": 1.6})
        figure.add_trace(line.update(name=key, showlegend=False), row=row, col=column)
    scores = perplexities(run)
    for role, colour in _ROLES.items():
        points = [(step, by[role]) for step, by in scores.items() if role in by]
        if points:
            x, y = zip(*points, strict=True)
            line = go.Scatter(x=x, y=y, mode="lines+markers", name=role, line={"color": colour})
            figure.add_trace(line, row=2, col=2)
    figure.update_xaxes(title_text="step", title_standoff=4)
    figure.update_layout(
        height=720,
        template="plotly_white",
        margin={"l": 50, "r": 20, "t": 50, "b": 40},
        legend={"x": 1, "y": 0.42, "xanchor": "right", "yanchor": "top"},
    )
    return figure


def _headline(summary: Summary) -> str:
    loss = ""
    if summary.loss_start is not None and summary.loss_end is not None:
        loss = f", loss {summary.loss_start:.3f} → {summary.loss_end:.3f}"
    return f"{summary.steps:,} steps, {summary.tokens:,} tokens{loss}, {summary.attempts} attempt(s)"


def _perplexity_table(summary: Summary) -> str:
    names = sorted({name for scores in summary.perplexity.values() for name in scores})
    rows = []
    for step, scores in summary.perplexity.items():
        label = "starting model" if step == 0 else f"step {step:,}"
        rows.append([label, *(f"{scores[n]:.3f}" if n in scores else "" for n in names)])
    return _table(["checkpoint", *names], rows)


def _attempt_rows(run: RunDir) -> list[list[str]]:
    rows = []
    for attempt in run.attempts():
        record = run.exit_record(attempt.number)
        end = [str(record.step), record.reason.value, record.message] if record else ["", "running", ""]
        rows.append([str(attempt.number), str(attempt.resumed_from_step), *end])
    return rows


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
