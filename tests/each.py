"""One test for a rule that must hold for many cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature, signature
from typing import Any


def each(names: str, cases: Iterable[Any], ids: Callable[[Any], Any] = str) -> Callable[[Callable[..., None]], Any]:
    """Decorator: make one test of a rule, which checks every case and reports each case that breaks the rule.

    Like ``pytest.mark.parametrize``, but fixtures are made once and serve all cases.

    Args:
        names: parameters of the rule that a case gives, separated by commas.
        cases: a value each, or as many values as there are names.
        ids: the name of a case in the report.
    """
    given, cases = [name.strip() for name in names.split(",")], list(cases)
    assert cases, "no case, so the rule could not fail"

    def test_of(rule: Callable[..., None]) -> Any:
        fixtures = [name for name in signature(rule).parameters if name not in given]

        def test(subtests: Any, **values: Any) -> None:
            for case in cases:
                with subtests.test(str(ids(case))):
                    rule(**values, **dict(zip(given, case if len(given) > 1 else [case], strict=True)))

        test.__name__, test.__doc__, test.__module__ = rule.__name__, rule.__doc__, rule.__module__
        asked = ["subtests", *fixtures]
        test.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in asked])  # read by pytest
        return test

    return test_of
