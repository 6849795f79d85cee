"""The kernel one idea at a time: parameters and parts of the design study that never win, still run and measured."""

from hopper_gemm.lab.ladder.ladder_config import LadderConfig, LadderKernel
from hopper_gemm.lab.ladder.rules import LADDER_RULES
from hopper_gemm.model.legality import add_kind

add_kind(LadderConfig, LadderKernel, LADDER_RULES)
