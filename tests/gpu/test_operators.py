"""What CUTLASS Operators runs of ours on a GPU is right; PYTHONPATH=build/operators brings the package."""

from __future__ import annotations

import pytest
import torch

from tests.each import each

library = pytest.importorskip("cutlass.operators", reason="make operators brings CUTLASS Operators")
cases = pytest.importorskip("tests.test_operators")

pytestmark = pytest.mark.gpu


@each("name", cases.CARRIED)
def test_every_operator_that_is_found_multiplies_right_on_another_stream(name):
    with torch.device("cuda"):
        args = cases.CARRIED[name]()
    out, stream = args.out.tensor.runtime_tensor, torch.cuda.Stream()
    operators = cases.found(args)
    assert operators
    for operator in operators:
        out.fill_(torch.nan)
        stream.wait_stream(torch.cuda.current_stream())
        operator.run(args, stream=stream)
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(out.float(), cases.expected(args), rtol=0.02, atol=0.02 * 128**0.5)
