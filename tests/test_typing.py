"""What a type checker says of calls of the public functions."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

CALLS = """
import torch
from hopper_gemm import fallback, linear, matmul

x = torch.ones(8, 8)
linear(x, x, activation="gelu_tanh")
linear(x, x, activation="tanh")  # wrong
matmul(x, x, fallback="never")
matmul(x, x, fallback="always")  # wrong
with fallback("faster"):
    pass
with fallback("slower"):  # wrong
    pass
"""


@pytest.mark.results
def test_an_activation_and_a_policy_that_do_not_exist_are_wrong_to_a_type_checker(tmp_path):
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [int(number) for number in re.findall(r"calls\.py:(\d+): error", done.stdout)]
    assert lines == [at for at, line in enumerate(CALLS.splitlines(), 1) if "# wrong" in line], done.stdout
