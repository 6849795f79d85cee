"""Users' names, commands and the columns of rows stay as they are, or change on purpose."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import hopper_gemm
from hopper_gemm.cli import app
from hopper_gemm.tune.study.row import header

SURFACE = Path(__file__).with_name("surface.json")
FIX = "say so in the CHANGELOG, and write the file anew: python -m tests.test_surface"


def surface() -> dict[str, Any]:
    """Signatures of public functions, schemas of operators, parameters of commands, and columns of a row."""
    functions = {name: getattr(hopper_gemm, name) for name in hopper_gemm.__all__}
    import torch
    from typer.main import get_command

    commands = get_command(app).commands
    operators = [getattr(torch.ops.hopper_gemm, name) for name in ("mm", "mm_out", "linear", "linear_out", "swiglu")]
    return {
        "functions": {
            name: re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
            for name, value in functions.items()
            if inspect.isfunction(value)
        },
        "names": sorted(functions),
        "operators": [str(operator.default._schema) for operator in operators],
        "commands": {
            name: sorted(word for option in one.params for word in option.opts) for name, one in commands.items()
        },
        "row": header(),
    }


def test_names_signatures_operators_commands_and_columns_are_those_that_were_noted():
    noted = json.loads(SURFACE.read_text())
    for part, value in json.loads(json.dumps(surface())).items():
        assert value == noted[part], f"the {part} changed; {FIX}"


if __name__ == "__main__":
    SURFACE.write_text(json.dumps(surface(), indent=1) + "\n")


def test_the_earlier_name_of_an_epilogue_serves_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"hopper_gemm\.Finish is hopper_gemm\.Epilogue"):
        assert hopper_gemm.Finish is hopper_gemm.Epilogue
