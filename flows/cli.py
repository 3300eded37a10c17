"""The command ``stayer``. Each command states its request, calls the same code that flows call, and reports."""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from infra.errors import InputError, StayerError
from infra.home import home
from training.rundir import RunDir

app = typer.Typer(
    name="stayer",
    help="Carries a continued-training run from raw text to a registered model, through every crash on the way.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
checkpoints_app = typer.Typer(help="List, verify and export the checkpoints of a run.", no_args_is_help=True)
app.add_typer(checkpoints_app, name="checkpoints")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Path of a job file.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or path of a run directory.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Report as JSON on stdout.")]

_OUT = Console(highlight=False, soft_wrap=True)
_ERR = Console(stderr=True, highlight=False, soft_wrap=True)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    home: Annotated[
        str | None, typer.Option("--home", help="Folder of runs, datasets and services.", show_default=".stayer")
    ] = None,
) -> None:
    if debug:
        os.environ["STAYER_DEBUG"] = "1"
    if home:
        os.environ["STAYER_HOME"] = home


@app.command()
def validate(job: JobArgument, set: SetOption = None, json: JsonOption = False) -> None:
    """Check a job without running it: every problem at once."""
    from flows.checks import check_job
    from flows.job_file import load_job, run_id

    loaded = load_job(job, set or [])
    check_job(loaded)
    found = {"job": job, "name": loaded.name, "run": run_id(loaded), "valid": True}
    _report(found, f"{job} is valid; its run is {found['run']}", as_json=json)


@app.command()
def prepare(job: JobArgument, set: SetOption = None, json: JsonOption = False) -> None:
    """Tokenize and pack a job's data, or find it done."""
    from flows.checks import check_job
    from flows.job_file import load_job
    from flows.session import session

    check_job(load_job(job, set or []))
    with session(_ERR):
        from flows.prepare import prepare_data

        data = prepare_data(job, set or [])
    _report(data.model_dump(), f"dataset {data.dataset_id[:16]} in {data.dataset}", as_json=json)


@app.command()
def run(
    job: JobArgument,
    set: SetOption = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; by default the job's own.")] = None,
    json: JsonOption = False,
) -> None:
    """Carry a job from text to a registered, evaluated model; goes on where an earlier call ended."""
    from flows.checks import check_job
    from flows.job_file import load_job
    from flows.runs import run_directory

    loaded = load_job(job, set or [])
    directory = run_directory(loaded, run_id)
    check_job(loaded)
    _carry_out(job, directory.run_id, set or [], as_json=json)


@app.command()
def resume(run: RunArgument, json: JsonOption = False) -> None:
    """Go on with a run that was stopped or failed; attaches to training that is still alive."""
    from flows.runs import find_run

    directory = find_run(run)
    _carry_out(str(directory.job_file), directory.run_id, [], as_json=json)


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run id; without one, all runs.")] = None,
    json: JsonOption = False,
) -> None:
    """Say how a run, or every run, stands."""
    from eval.summary import summarize
    from flows.runs import all_runs, find_run
    from flows.tables import runs_table, summary_table
    from infra.home import home

    if run is not None:
        summary = summarize(find_run(run))
        _report(summary.model_dump(), summary_table(summary), as_json=json)
        return
    found = [summarize(one) for one in all_runs()]
    table = runs_table(found) if found else f"no runs in {home() / 'runs'} yet"
    _report([one.model_dump() for one in found], table, as_json=json)


@app.command(name="eval")
def evaluate(
    run: RunArgument,
    step: Annotated[int | None, typer.Option(help="Checkpoint; 0 is the starting model, default the newest.")] = None,
    json: JsonOption = False,
) -> None:
    """Score a checkpoint on the held-out documents."""
    from flows.runs import find_run
    from flows.session import session

    directory = find_run(run)
    with session(_ERR):
        from flows.evaluate import evaluate_checkpoint

        scores = evaluate_checkpoint(directory.run_id, step)
    _report(scores, "  ".join(f"{name} {value:.3f}" for name, value in scores.items()), as_json=json)


@checkpoints_app.command("list")
def list_(run: RunArgument, json: JsonOption = False) -> None:
    """List the committed checkpoints."""
    from flows.runs import find_run
    from flows.tables import checkpoints_table
    from training.checkpoint_manifest import list_checkpoints

    found = list_checkpoints(find_run(run))
    _report([one.model_dump(mode="json") for one in found], checkpoints_table(run, found), as_json=json)


@checkpoints_app.command()
def verify(run: RunArgument, json: JsonOption = False) -> None:
    """Check every file of every committed checkpoint against its hash; exit code 1 if one is damaged."""
    from flows.runs import find_run
    from training.checkpoint_manifest import MANIFEST, DamagedCheckpointError, read_manifest
    from training.checkpoint_manifest import verify as verify_files

    directory = find_run(run)
    found: dict[int, str] = {}
    for manifest in sorted(directory.checkpoints.glob(f"step-*/{MANIFEST}")):
        step = int(manifest.parent.name.removeprefix("step-"))
        try:
            verify_files(manifest.parent, read_manifest(manifest.parent))
            found[step] = "good"
        except DamagedCheckpointError as err:
            found[step] = err.message
    damaged = [step for step, state in found.items() if state != "good"]
    lines = "\n".join(f"step {step}: {state}" for step, state in found.items()) or "no committed checkpoint"
    _report(found, lines, as_json=json)
    if damaged:
        raise typer.Exit(1)


@checkpoints_app.command()
def export(
    run: RunArgument,
    target: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint to export; by default the newest.")] = None,
) -> None:
    """Write a checkpoint as a Hugging Face folder."""
    from flows.runs import find_run
    from tasks.checkpoints import newest_step
    from tasks.models import write_export

    directory = find_run(run)
    write_export(directory, newest_step(directory) if step is None else step, target.resolve())
    _OUT.print(f"exported to {target}")


@app.command()
def up() -> None:
    """Start the Prefect server, the MLflow server and a worker on loopback; Ctrl-C stops them all."""
    from infra.home import home
    from infra.serve import POOL
    from infra.serve import up as serve_up

    with serve_up(home()) as services:
        _OUT.print(f"Prefect  {services.prefect_url}\nMLflow   {services.mlflow_url}\nworker   pool {POOL}")
        _OUT.print(f"\nexport PREFECT_API_URL={services.prefect_api_url}\nCtrl-C stops them all.")
        services.wait()
    _OUT.print("stopped")


@app.command()
def deploy(json: JsonOption = False) -> None:
    """Create or update the deployments and the failure automation on the Prefect server."""
    from flows.deploy import deploy_all
    from flows.session import session

    with session(_ERR, quiet=True):
        names = deploy_all()
    _report(names, "\n".join(names), as_json=json)


def _carry_out(job: str, run_id: str, overrides: list[str], *, as_json: bool) -> None:
    """Run the main flow in this process, and judge by the run directory how it went."""
    from flows.session import campaign_state, session

    directory = RunDir(home() / "runs" / run_id)
    earlier = len(directory.events("campaign_started"))
    with session(_ERR):
        error = campaign_state(job, run_id, overrides)
    if error is not None and len(directory.events("campaign_started")) == earlier:
        raise error  # it never began: how an earlier campaign ended is not the answer
    from eval.summary import summarize
    from flows.tables import summary_table

    summary = summarize(directory)
    if as_json or summary.outcome == "completed":
        _report(summary.model_dump(), summary_table(summary), as_json=as_json)
    if summary.outcome == "completed":
        if not as_json:
            _OUT.print("\nstayer up opens the Prefect and MLflow pages of this run.")
        return
    if summary.outcome == "stopped":
        _ERR.print(f"stopped after step {summary.steps:,}; go on with: stayer resume {run_id}")
        raise typer.Exit(130)
    raise error or StayerError(f"run {run_id} did not complete", hint=f"stayer status {run_id}")


def _report(value: Any, text: Any, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    else:
        _OUT.print(text)


def main() -> None:
    """Run the command line; every error is one readable message and a hint, with exit code 1 or 2."""
    started = time.monotonic()
    _prepare_children()
    try:
        sys.exit(app(standalone_mode=False))  # the code of a typer.Exit, else None
    except (KeyboardInterrupt, typer.Abort):
        _ERR.print(f"interrupted after {time.monotonic() - started:.0f} s; finished parts are kept")
        sys.exit(130)
    except Exception as err:
        sys.exit(_tell(err))


def _prepare_children() -> None:
    """Processes started from here take no module from the working directory and no proxy to loopback."""
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def _tell(err: Exception) -> int:
    if os.environ.get("STAYER_DEBUG"):
        traceback.print_exception(err)
    usage = getattr(err, "format_message", None)  # an error of the command line itself
    if usage is not None:
        if usage():  # empty when no command was given: the help was shown instead
            _ERR.print(f"error: {usage()}", markup=False)
        return 2
    message = err.message if isinstance(err, StayerError) else f"{type(err).__name__}: {err}"
    _ERR.print(f"error: {message}", markup=False)
    hint = err.hint if isinstance(err, StayerError) else "stayer --debug … shows where it happened"
    if hint:
        _ERR.print(f"hint: {hint}", markup=False)
    return 2 if isinstance(err, InputError) else 1
