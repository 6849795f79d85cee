"""Extensions of the autotuner: parameters of the design study, and recorded binaries as a baseline."""

import hopper_gemm.lab.ladder.ladder_config  # noqa: F401  (it adds its rules, and so its kind of config)
from hopper_gemm.tune.registry import BASELINES

BASELINES["recorded"] = "hopper_gemm.lab.guard.baseline:RecordedBaseline"
