"""The keys of a sweep's file, from the model that reads it: names, values and defaults of its schema, the meaning from
the comments and docstrings beside the fields."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from hopper_gemm.tune.measure.protocol import Burst, Steady
from hopper_gemm.tune.study import spec
from hopper_gemm.tune.tables.pivot import markdown as table
from hopper_gemm.tune.tables.pivot import one_line

OTHERS = ("config", "menu", "against", "processes")
"""Keys of a comparison or a map."""

TABLES: dict[str, tuple[type, ...]] = {
    "": (spec.Spec,),
    "[[problems]]": (spec.SearchedProblem, spec.ProblemSection),
    "[[rungs]]": (spec.RungSection,),
    "[burst]": (Burst,),
    "[steady]": (Steady,),
    "[race]": (spec.RaceSection,),
    "[budget]": (spec.BudgetSection,),
    "[final]": (spec.FinalSection,),
    "[table]": (spec.TableSection,),
}
"""Tables of a file, each with the class that reads it and those that this one inherits from."""

FIELD = re.compile(r"    (\w+): [^#]*?(?:  # (.*))?$")


def sweep_keys() -> str:
    """Return the keys that a file may have itself, then those of each of its tables."""
    schema = spec.Spec.model_json_schema()
    found = []
    for name, (kind, *above) in TABLES.items():
        told, known = meanings(kind, *above), schema["$defs"][kind.__name__] if name else schema
        if name:
            found += [f"`{name}`: {one_line(inspect.getdoc(kind) or '')}", ""]
        names = {field.alias or key: key for key, field in getattr(kind, "model_fields", {}).items()}
        rows = []
        for key, of in known["properties"].items():
            if name or key not in OTHERS:
                default = "required" if key in known.get("required", ()) else f"default {toml(of.get('default'))}"
                rows.append((f"`{key}`", f"{values(of)}; {default}", told[names.get(key, key)]))
        found += [table(("key", "values", "meaning"), rows), ""]
    return "\n".join(found).strip()


def meanings(*kinds: type) -> dict[str, str]:
    """Return the comment of each field of classes: that on its line, else the lines before it."""
    told: dict[str, str] = {}
    for kind in kinds:
        before: list[str] = []
        for line in inspect.getsource(kind).splitlines():
            if line.startswith("    # "):
                before.append(line.strip("# "))
            elif match := FIELD.match(line):
                told.setdefault(match[1], one_line(match[2] or " ".join(before)))
                before = []
    return told


def values(of: dict[str, Any]) -> str:
    """Return the values that a property takes by its JSON schema, in words."""
    if "anyOf" in of:
        return values(next(one for one in of["anyOf"] if one != {"type": "null"}))
    if "$ref" in of:
        return "a table, below"
    if "enum" in of or "const" in of:
        return ", ".join(toml(one) for one in of.get("enum", [of.get("const")]))
    if of["type"] == "array":
        return "tables, below" if "$ref" in of["items"] else f"list of {values(of['items'])}"
    kind = {"string": "text", "boolean": "`true`, `false`", "object": "table of parameters"}.get(of["type"], of["type"])
    ends = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return " ".join([kind, *(f"{word} {of[end]}" for end, word in ends.items() if end in of)])


def toml(value: Any) -> str:
    """Return a value as TOML writes it, in code; of a table, all of whose keys have defaults, and of what may be left
    out, a word."""
    return "none" if value is None else "those below" if value and isinstance(value, dict) else f"`{json.dumps(value)}`"
