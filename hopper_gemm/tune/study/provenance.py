"""Provenance of figures: everything a reader needs to trust or repeat them."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hopper_gemm.model.sealed import printable
from hopper_gemm.tune.parameters import config_of
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.schema import NAMES, PAIRS, SCHEMA_VERSION

PROVENANCE = "provenance.json"
PACKAGES = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "optuna", "nvidia-cublas", "pandas", "numpy")

Rule = Callable[[Any], str]
"""Returns in words what a value must be; empty if it is valid."""


@dataclass(frozen=True)
class Object:
    """The shape of a JSON object."""

    # shape by name: another object, a list of one shape, or a rule; ... stands for every other name.
    keys: Mapping[Any, Any]
    needed: tuple[str, ...] = ()  # names without which the object says too little


def _rule(wanted: str, holds: Callable[[Any], object]) -> Rule:
    """Return the rule that ``holds`` is true of a value."""
    return lambda value: "" if holds(value) else wanted


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


NAME = re.compile(r"\w[\w.+-]{0,99}")
"""Form of the name of a study, of which names of files are made."""

MOMENT = "%Y-%m-%d %H:%M UTC"
"""Format of a time."""

NUMBER = _rule("a number", _number)
INTEGER = _rule("an integer", lambda value: _number(value) and isinstance(value, int))
TEXT = _rule("text without control characters", lambda value: isinstance(value, str) and printable(value) == value)
MAYBE_TEXT = _rule("text or null", lambda value: value is None or not TEXT(value))
TEXTS = _rule(
    "text or a list of texts",
    lambda value: all(isinstance(text, str) for text in (value if isinstance(value, list) else [value])),
)
STUDY = _rule("a name of letters, digits and . _ + -", lambda value: isinstance(value, str) and NAME.fullmatch(value))
COLUMN = _rule("a column of the results", lambda value: value in (*NAMES, *PAIRS))
MAYBE_COLUMN = _rule("a column of the results", lambda value: value is None or not COLUMN(value))
SPACE = _rule("an object of kernel parameters", lambda value: isinstance(value, dict) and not any(map(COLUMN, value)))


def _moment(value: Any) -> str:
    try:
        datetime.strptime(value or "2026-11-23 08:00 UTC", MOMENT)
    except (TypeError, ValueError):
        return "a time such as 2026-11-23 08:00 UTC"
    return ""


def _config(value: Any) -> str:
    try:
        config_of(value)
    except (AttributeError, TypeError, ValueError) as error:
        return f"a config of the kernel ({str(error).partition(chr(10))[0]})"
    return ""


RUNG = {"name": TEXT, "adds": TEXT, "from": MAYBE_TEXT, "config": _config}
SHAPE = Object(
    {
        "study": STUDY,
        **dict.fromkeys(("source", "question", "spec_digest", "replayed_from", "record"), TEXT),
        **dict.fromkeys(("commit", "kernel"), MAYBE_TEXT),
        **dict.fromkeys(("rows", "cols"), COLUMN),
        **dict.fromkeys(("facet_rows", "facet_cols"), MAYBE_COLUMN),
        **dict.fromkeys(("schema_version", "seed", "points"), INTEGER),
        **dict.fromkeys(("searched", "at_work", "seconds"), NUMBER),
        "created": _moment,
        "gpu": Object({"name": TEXT, "driver": TEXT, "uuid": TEXT}, ("name",)),
        "spec": Object(
            {
                **dict.fromkeys(("sampler", "name", "config"), TEXT),
                **{name: [TEXT] for name in ("regimes", "contexts", "against", "warm_start")},
                "data": TEXTS,
                "space": SPACE,
                "burst": Object({...: NUMBER}, ("rest", "warm", "timed")),
                "steady": Object({...: NUMBER}, ("settle", "window")),
                "final": Object({"best": INTEGER}),
            }
        ),
        "versions": Object({...: MAYBE_TEXT}),
        **dict.fromkeys(("missing", "finalists_from"), Object({...: TEXT})),
        "boards": [TEXT],
        "finalists": Object({...: [TEXT]}),
        **dict.fromkeys(("noise", "spent"), Object({...: NUMBER})),
        "skipped": Object({...: INTEGER}),
        "even": Object({...: [TEXT]}),
        "importance": Object({...: Object({"evaluator": TEXT, "parameters": Object({...: NUMBER})}, ("parameters",))}),
        "protocols": [Object({"regime": TEXT}, ("regime",))],
        "rungs": [Object(RUNG, tuple(RUNG))],
        "finished": Object(
            {"rows": INTEGER, "digest": TEXT, "counted": _moment, "places": Object({...: INTEGER})}, ("rows", "digest")
        ),
    },
    ("schema_version", "study", "source", "created", "gpu", "spec"),
)
"""Shape of what readers take from the file; keys that no reader takes may hold anything."""


def checked(provenance: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a provenance file. A ResultsError names the key that is missing, or whose value no reader
    could use."""
    version = provenance.get("schema_version")
    if isinstance(version, int) and version != SCHEMA_VERSION:
        fix = "update hopper-gemm" if version > SCHEMA_VERSION else "read it with the release that wrote it"
        raise ResultsError(f"{path}: schema_version must be {SCHEMA_VERSION} but got {version}; {fix}")
    for mistake in _mistakes(provenance, SHAPE, ""):
        raise ResultsError(f"{path}: {mistake}; restore the file")
    return provenance


def _mistakes(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield the mistakes in a value and its parts, each with its path."""
    got = f"is a {type(value).__name__}"
    if isinstance(shape, Object):
        if not isinstance(value, dict):
            yield f"{path} must be an object but {got}"
            return
        inside = f"{path}." if path else ""
        yield from (f"the key {inside}{name} is missing" for name in shape.needed if name not in value)
        for name, part in value.items():
            if printable(name) != name:
                yield f"the key {inside}{printable(name)} must be text without control characters"
            yield from _mistakes(part, shape.keys.get(name, shape.keys.get(..., lambda _: "")), f"{inside}{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{path} must be a list but {got}"
            return
        for number, part in enumerate(value):
            yield from _mistakes(part, shape[0], f"{path}.{number}")
    elif wanted := shape(value):
        yield f"{path} must be {wanted} but {got if isinstance(value, list | dict) else f'got {value!r:.40}'}"


def fresh(study: str, question: str, source: str, **more: Any) -> dict[str, Any]:
    """Return the provenance of a study that begins now, with further keys such as spec."""
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "question": question,
        "source": source,
        "created": datetime.now(UTC).strftime(MOMENT),
        "commit": commit(),
        "versions": versions(),
        "noise": {},
        "boards": [],
        **more,
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that figures depend on; None for a missing one."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def commit() -> str | None:
    """Return the revision of this checkout, marked if it has changes; that of a file ``COMMIT`` if there is one."""
    root = Path(__file__).parents[2]
    note = root / "COMMIT"
    if note.is_file():
        return note.read_text().strip()
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        described = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
        return described.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
