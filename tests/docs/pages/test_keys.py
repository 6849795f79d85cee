"""The reference of a sweep's file has every key, and a meaning for each."""

from __future__ import annotations

from docs.generate.pages.keys import OTHERS, TABLES, sweep_keys
from hopper_gemm.tune.study.spec import Spec


def test_every_key_of_a_sweep_stands_in_the_reference_with_its_values_default_and_meaning():
    rows = [line.strip("| ").split(" | ") for line in sweep_keys().splitlines() if line.startswith("| `")]
    assert [
        row for row in rows if len(row) != 3 or not all(row) or ("default" not in row[1] and "required" not in row[1])
    ] == []
    own = {field.alias or name for name, field in Spec.model_fields.items()} - {*OTHERS}
    assert own <= {row[0].strip("`") for row in rows}
    assert {name.strip("[]") for name in TABLES if name} <= own
