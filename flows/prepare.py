"""Raw text to a packed dataset: tokenize, pack, manifest."""

from pathlib import Path

from prefect import flow, unmapped
from prefect.futures import wait
from prefect.task_runners import ThreadPoolTaskRunner

from flows.job import Job
from flows.job_file import base_of, load_job
from flows.naming import name_of_run
from flows.runs import find_run
from infra.errors import InputError
from infra.home import home
from infra.locks import exclusive
from packing.prepare import PreparationPlan, finished
from tasks import corpus
from tasks.corpus import PreparedData
from tasks.models import fetch_model
from tasks.stages import stage
from training.config import TokenizerConfig
from training.rundir import RunDir

# tokenizers runs one batch on all cores; a second unit in flight covers reading and writing.
_UNITS_IN_FLIGHT = 2
_OTHER_PREPARATION_S = 24 * 3600


@flow(name="prepare-data", flow_run_name=name_of_run, task_runner=ThreadPoolTaskRunner(max_workers=_UNITS_IN_FLIGHT))  # type: ignore[arg-type]
def prepare_data(job: str, overrides: list[str] | None = None, run: str | None = None) -> PreparedData:
    """Make the dataset of a job file, or find it made.

    Args:
        job: path of the job file.
        overrides: ``section.key=value`` items.
        run: run id whose record tells how long each part took.
    """
    loaded, told = load_job(job, overrides or ()), find_run(run) if run else None
    with stage("tokenizer", told):
        tokenizer = find_tokenizer(loaded)
    with stage("hash sources", told):
        plan = corpus.plan(loaded.data, loaded.packing, tokenizer=tokenizer, root=str(home() / "datasets"))
    with exclusive(Path(f"{plan.work}.lock"), what=f"preparing {plan.dataset_id[:16]}", wait_s=_OTHER_PREPARATION_S):
        _prepare(plan, told)
    return PreparedData(dataset=plan.dataset, dataset_id=plan.dataset_id, tokenizer=tokenizer)


def _prepare(plan: PreparationPlan, told: RunDir | None) -> None:
    if finished(plan) is None:
        with stage("tokenize", told, total=plan.num_units, unit="units"):
            units = corpus.tokenize.map(unmapped(plan), range(plan.num_units))
            wait(units)
            units.result()
        with stage("pack", told, total=plan.num_buckets, unit="buckets"):
            buckets = corpus.pack.map(unmapped(plan), range(plan.num_buckets))
            buckets.result()
        with stage("manifest", told):
            corpus.write_manifest(plan)


def find_tokenizer(job: Job) -> str:
    """Folder of the tokenizer a job uses: its own, a trained one, or that of the model it starts from."""
    choice = job.model.tokenizer
    if isinstance(choice, TokenizerConfig):
        return corpus.make_tokenizer(job.data, vocab_size=choice.vocab_size, root=str(home() / "tokenizers"))
    if choice is not None:
        return fetch_model(choice)
    base = base_of(job)
    if base is not None:
        return find_tokenizer(base)
    if job.model.path is None:  # ModelConfig asks for a tokenizer whenever there is no model to take it from
        raise InputError("the job names no tokenizer", hint="set model.tokenizer")
    return fetch_model(job.model.path)
