"""What ``tune`` finds, ``matmul`` runs: from the command, on GPUs that are not there, to a later process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import ROOT

SERVE = """
import json
from types import SimpleNamespace
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda device: SimpleNamespace(name="NVIDIA H200")
import hopper_gemm
from hopper_gemm.serve import kernels
kernels.chip_of = lambda device: kernels.SXM
kernels.load = lambda config, problem, **how: config
print(json.dumps(kernels.kernel_for(hopper_gemm.GemmProblem(1032, 1032, 1032), 0).as_dict()))
"""


def test_what_tune_finds_a_later_process_serves_with_the_digest_of_its_machine_code(tmp_path):
    """As from a wheel, whose table lies among the user's data."""
    site, own = tmp_path / "site", tmp_path / "data" / "hopper-gemm"
    site.mkdir()
    (site / "hopper_gemm").symlink_to(ROOT / "hopper_gemm")
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("data", "cache")}
    paths = os.pathsep.join([str(site), str(ROOT)])
    environment = {**os.environ, **folders, "PYTHONPATH": paths, "FAKE_LOG": str(tmp_path / "log")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    before = json.loads(python("-c", SERVE))
    tune = ("tune", "1032", "1032", "1032", "--gpus", "0", "--trials", "6", "--finals", "2")
    python("-m", "tests.tune.run.command", *tune)
    (entry,) = json.loads((own / "h200" / "best_configs.json").read_text())["entries"]
    after = json.loads(python("-c", SERVE))
    assert (after, after == before) == (entry["config"], False)
    explain = ("explain", "1032", "1032", "1032", "--gpu", "h200", "--json")
    told = json.loads(python("-m", "hopper_gemm", *explain))["matmul"]
    assert told["how"] == "tuned"
    assert len(entry["code"]) == 8
    assert (told["entry"]["code"], told["entry"]["table"]) == (entry["code"], str(own / "h200" / "best_configs.json"))
