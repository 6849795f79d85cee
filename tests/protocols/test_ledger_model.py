"""Parts that meet on a ledger: in every order of events, and whoever is resident, sums are added up once, of all parts,
and the word is as the next launch wants it."""

from __future__ import annotations

import pytest

from hopper_gemm.kernel.sums.ledger import ALONE, ARRIVED, FILED, FILED_ONE, TURN
from hopper_gemm.model import hopper
from hopper_gemm.model.rules.shape import CTAS_PER_SM
from hopper_gemm.model.rules.technique import PARTS_MAX
from tests.each import each
from tests.protocols.broken import failing
from tests.protocols.ledger_model import LedgerModel

SIZES = [(parts, resident) for parts in (2, 3, 4) for resident in range(1, parts + 1)]


def launches(ledger: LedgerModel) -> set[int]:
    """Words that launches in a row leave, beginning with one after the workspace was cleared."""
    left: set[int] = set()
    todo = [0]
    while todo:
        ends = {end.word for end in ledger.run(todo.pop()).ends}
        todo += ends - left
        left |= ends
    return left


@each("parts, resident, looks", [(*sizes, looks) for sizes in SIZES for looks in (0, 1)])
def test_split_k_launches_in_a_row_end_well_and_leave_a_word_without_counts(parts, resident, looks):
    """With all parts resident either ending comes about; with fewer, nobody waits for those that are not there."""
    assert launches(LedgerModel(parts, resident, looks)) == ({0, TURN} if resident == parts else {0})


@each("parts, resident, looks", [(*sizes, looks) for sizes in SIZES for looks in (0, 1, 2)])
def test_stream_k_launches_in_a_row_end_well_and_leave_the_word_zero(parts, resident, looks):
    """Also where the owner is the last to be resident."""
    assert launches(LedgerModel(parts, resident, looks, owned=True)) == {0}


@pytest.mark.parametrize(("owned", "resident"), [(False, 3), (True, 3), (True, 1)])
def test_both_endings_come_about(owned, resident):
    adders = {
        tuple(i for i, part in enumerate(end.parts) if part.adds)
        for end in LedgerModel(3, resident, 1, owned).run().ends
    }
    assert adders >= ({(0,), (2,)} if owned else {(0, 1, 2)})
    assert any(len(one) == 1 for one in adders)


@pytest.mark.parametrize(
    ("fault", "owned", "kinds"),
    [
        ("early clear", False, {"sums", "word"}),
        ("early clear", True, {"sums", "word"}),
        ("torn alone", False, {"sums"}),
        ("torn alone", True, {"sums", "word"}),
        ("no turn", False, {"sums"}),
        ("late sums", False, {"sums"}),
        ("late sums", True, {"sums"}),
    ],
)
def test_each_mistake_is_found(fault, owned, kinds):
    for parts in (3, 4):
        assert failing(LedgerModel(parts, parts, owned=owned, fault=fault).run) in kinds


def test_a_word_that_the_last_launch_did_not_clear_is_found():
    assert failing(LedgerModel(2, 2).run, 2) in ("word", "sums")
    assert failing(LedgerModel(2, 2, owned=True).run, 1) in ("word", "sums")


def test_the_counts_hold_as_many_parts_as_any_launch_has():
    """Stream-K may cut one tile for all clusters of a launch."""
    assert max(PARTS_MAX, hopper.SM_COUNT * max(CTAS_PER_SM)) <= ARRIVED
    assert FILED == ARRIVED * FILED_ONE
    assert ARRIVED + FILED < ALONE < TURN < 2**31
