"""What can be known to be wrong with a job before anything is written or started."""

import json
from pathlib import Path
from typing import Any

from flows.job import Job
from flows.job_file import lineage
from flows.problems import JobFileError, Problem
from infra.errors import InputError, StayerError
from packing.documents import read_documents
from packing.plan import list_files
from training.config import TokenizerConfig
from training.model_limits import ModelLimits, check_fit, limits_of_architecture, limits_of_folder


def check_job(job: Job) -> None:
    """Check a job and the jobs it builds on against the world: sources, first records, model and tokenizer.

    Raises:
        JobFileError: with every problem found.
    """
    chain = lineage(job)
    problems = [problem for one in chain for problem in _sources(one)]
    problems += [problem for index in range(len(chain)) for problem in _model(chain[: index + 1])]
    if problems:
        raise JobFileError(problems)


def _sources(job: Job) -> list[Problem]:
    problems = []
    for index, source in enumerate(job.data.sources):
        key = f"data.sources.{index}"
        try:
            files = list_files(source)
            filled = [file for file in files if file.size_bytes]
            if not filled:
                raise InputError(f"all {len(files)} files of source {source.name} are empty")
            smallest = min(filled, key=lambda file: file.size_bytes)
            next(read_documents(smallest.hashed(), source), None)
        except StayerError as err:
            problems.append(Problem(job.name, key, err.message, err.hint))
        except Exception as err:  # whatever a file system or store says: permissions, credentials, a dead host
            problems.append(Problem(job.name, key, f"source {source.name} cannot be read: {type(err).__name__}: {err}"))
    return problems


def _model(chain: list[Job]) -> list[Problem]:
    """Check the last job of a chain: vocabulary against embedding, rows against positions."""
    job, origin = chain[-1], chain[0].model
    try:
        limits = _limits(chain)
        vocab_size = next((v for v in (_vocab_size(one) for one in reversed(chain)) if v is not None), 0)
        check_fit(limits, vocab_size=vocab_size, seq_len=job.packing.seq_len)
    except (StayerError, OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        if not isinstance(err, StayerError):
            err = InputError(
                f"config.json or tokenizer.json is not what Hugging Face writes: {type(err).__name__}: {err}"
            )
        where = "model.path" if origin.path else "model.architecture"
        return [Problem(job.name, where, err.message, err.hint)]
    return []


def _limits(chain: list[Job]) -> ModelLimits:
    origin = chain[0].model
    if origin.architecture is not None:
        return limits_of_architecture(origin.architecture)
    if origin.path is not None and Path(origin.path).is_dir():
        return limits_of_folder(origin.path)
    if origin.path is not None and origin.path.startswith(("/", ".", "~")):
        raise InputError(f"{origin.path} does not exist", hint="a Hugging Face folder with config.json and weights")
    return ModelLimits(None, None)  # a hub model is looked at when it has been fetched


def _vocab_size(job: Job) -> int | None:
    """Entries of the tokenizer a job names, if it names one that can be known beforehand."""
    choice = job.model.tokenizer or job.model.path
    if isinstance(choice, TokenizerConfig):
        return choice.vocab_size
    if choice is None or not Path(choice).is_dir():
        return None
    file = Path(choice) / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{choice} holds no tokenizer.json", hint="set model.tokenizer to a fast tokenizer's folder")
    spec: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    ids: list[int] = [*spec["model"]["vocab"].values(), *(token["id"] for token in spec.get("added_tokens", []))]
    return max(ids) + 1
