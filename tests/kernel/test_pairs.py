"""Any two parts of a kernel compile together, both of them in the machine code, or a named rule says why not."""

from __future__ import annotations

import pytest

from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.model.legality import reasons
from tests.kernel.pairs import PAIRS, PARTS, PROBLEM, REFUSED, TOGETHER, TRIPLES, named, together


@pytest.fixture(scope="module")
def code(kernel_store):
    """The digest of the machine code of parts together, and whether it is that of a kernel that spills nothing."""
    pool = CompilePool(kernel_store)

    def compiled(*names):
        built = pool.result(together(*names).binary())
        assert (built.status, built.reason) == ("ok", "")
        return built.report.code

    yield compiled
    pool.close()


def test_every_pair_is_legal_or_refused_by_the_rule_of_the_table():
    for pair in PAIRS:
        part = together(*pair)
        found = [reason.rule for reason in reasons(part.kernel, PROBLEM, part.steps)]
        assert found == ([REFUSED[named(*pair)]] if named(*pair) in REFUSED else []), pair


def test_each_part_alone_is_legal():
    """What a pair is refused for is not the fault of one of them."""
    assert {name: found for name, part in PARTS.items() if (found := reasons(part.kernel, PROBLEM, part.steps))} == {}


@pytest.mark.compile
@pytest.mark.parametrize("names", [*TOGETHER, *TRIPLES], ids="+".join)
def test_parts_that_go_together_are_all_in_the_machine_code(code, names):
    """Nothing is dropped in silence: the code is that of no fewer parts. An activation is part of a gate."""
    whole = code(*names)
    for absent in names:
        if not (absent == "activation" and "gate" in names):
            assert whole != code(*(name for name in names if name != absent)), f"{absent} is not in it"
