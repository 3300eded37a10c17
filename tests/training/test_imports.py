import subprocess
import sys

import pytest
from training_runs import REPOSITORY


@pytest.mark.parametrize(
    "module", ["rundir", "exits", "config", "lease", "length", "schedule", "model_limits", "checkpoint_manifest"]
)
def test_what_the_orchestrator_reads_costs_no_torch_import(module):
    code = f"import sys, training.{module}; print(sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
