"""The JSON Schema of a job file, for editors: ``python -m flows.schema`` rewrites deployments/job.schema.json."""

import json
from pathlib import Path

import deployments
from flows.job import Job
from infra import storage

SCHEMA_FILE = Path(deployments.__file__).parent / "job.schema.json"


def job_schema() -> str:
    """The schema as the file holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    storage.write_text(str(SCHEMA_FILE), job_schema())
