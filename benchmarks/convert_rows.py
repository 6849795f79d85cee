"""Convert the recorded rows of a checkout to schema version 3, once; values equal, checked row by row.

    python convert_rows.py CHECKOUT [--old REVISION]

REVISION is the last one whose code reads versions 1 and 2 (default e6cf578). Folders that are of version 3 already are
left as they are. Steps: the old code (git archive of REVISION) reads every folder below CHECKOUT/results and dumps plain
values; the code of CHECKOUT writes them anew and reads them back; every field of every row is compared.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

OLD = "e6cf578"
CUT_OFF = {"early", "steady-e"}
"""Studies of version 1 that notes.toml calls unfinished: they get no end."""

OLD_FILES = ("trials", "final", "samples", "compare", "compare-samples", "counters")
NAMES = {"early": "pdl", "zigzag": "reverse_k"}
WORDS = {"multicast": {"rows": "split", "turns": "alternate"}}


# Old code -------------------------------------------------------------------------------------


def plain(row) -> dict:
    """A row as builtin values, every field of it."""
    point = row.point
    values = None
    if point.config is not None:
        from hopper_gemm.ladder.config import all_values

        values = {**all_values(point.config), "__kind__": type(point.config).__name__}
    problem = point.problem
    return {
        "problem": (problem.m, problem.n, problem.k, problem.dtype, problem.layouts),
        "config": values,
        "way": (point.regime, point.context, point.against, point.data),
        "status": row.status,
        "reason": row.reason,
        "figures": dict(row.figures),
        "samples": [tuple(one) for one in row.samples],
        "stage": row.stage,
        "process": row.process,
        "origin": (row.study, row.source, row.gpu, row.board),
    }


def renamed(value, key=""):
    """Provenance with parameters under their names of now, and with their words."""
    if isinstance(value, dict):
        return {NAMES.get(name, name): renamed(one, NAMES.get(name, name)) for name, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, key) for one in value]
    if isinstance(value, str):
        if key in WORDS:
            return WORDS[key].get(value, value)
        if key in ("rows", "cols", "facet_rows", "facet_cols"):
            return NAMES.get(value, value)
    return value


def controls(folder, rows):
    """Rows for the noise floors of version 1, which kept their pairs without a row."""
    import numpy as np

    from hopper_gemm.model.point import Sample
    from hopper_gemm.study.pooling import interval
    from hopper_gemm.study.reader import records, there

    if not there(folder / "samples.csv"):
        return []
    lines = records(folder / "samples.csv")
    names = next(lines)[1]
    found = {}
    for _, values in lines:
        one = dict(zip(names, values, strict=True))
        if one.get("stage") != "control":
            continue
        assert one.get("against", "cublas") == "cublas" and one.get("config") == "cublas", one
        theirs = one["cublas_us"] if "cublas_us" in one else one["theirs_us"]
        key = (int(one["m"]), int(one["n"]), int(one["k"]), one.get("data") or "normal", one["regime"])
        found.setdefault(key, []).append(Sample(int(one["process"]), float(one["ours_us"]), float(theirs)))
    made = []
    for (m, n, k, data, regime), samples in found.items():
        kin = [r for r in rows if r["problem"][:3] == (m, n, k) and r["way"] == (regime, "chained", "cublas", data)]
        kin = [r for r in kin if r["stage"] == "sweep"] or kin
        assert kin, (folder, m, n, k, data, regime)
        time_us, baseline_us = map(float, np.median([one.bare_us for one in samples], axis=0))
        figures = dict(zip(("speedup", "speedup_low", "speedup_high"), interval(samples), strict=True))
        figures |= {"pairs": len(samples), "processes": len({one.process for one in samples})}
        figures |= {"time_us": time_us, "baseline_us": baseline_us, "tflops": 2.0 * m * n * k / time_us / 1e6}
        kernels = [r["figures"]["baseline_kernel"] for r in kin if r["figures"].get("baseline_kernel")]
        figures |= {"baseline_kernel": kernels[0]} if kernels else {}
        figures = {x: float(f"{y:.6g}") if isinstance(y, float) else y for x, y in figures.items()}
        made.append(
            {
                "problem": kin[0]["problem"],
                "config": None,
                "way": (regime, "chained", "cublas", data),
                "status": "ok",
                "reason": "",
                "figures": figures,
                "samples": [tuple(one) for one in samples],
                "stage": "control",
                "process": 0,
                "origin": kin[0]["origin"],
            }
        )
    return made


def read_old(root: Path, out: Path) -> None:
    from hopper_gemm.study import version1
    from hopper_gemm.study.files import read_json
    from hopper_gemm.study.reader import has_rows, read_study, there
    from hopper_gemm.tables.pages.index import missing
    from hopper_gemm.tables.pages.report import even_configs
    from hopper_gemm.tables.pages.simulation import in_terms_of_now
    from hopper_gemm.tables.pivot import groups, rows_of

    found, lines = [], Counter()
    for folder in sorted(path for path in (root, *root.rglob("*")) if path.is_dir()):
        path = folder / "provenance.json"
        raw = json.loads(path.read_text()) if path.is_file() else {}
        if raw.get("schema_version") == 3:
            continue
        if not has_rows(folder):
            if "schema_version" in raw:
                found.append({"folder": folder, "about": {**raw, "schema_version": 3}, "rows": None})
            continue
        study = read_study(folder)
        version = raw.get("schema_version", 1)
        first = not there(folder / "rows.csv")
        assert first == (version == 1), folder
        rows = [plain(row) for row in study.rows]
        about = dict(study.provenance)
        name = about.get("study") or about.pop("name", None) or re.sub(r"^\d{4}-\d\d-\d\d-", "", folder.name)
        ends = "rows" in (raw.get("finished") or {})
        if version == 1:
            for row in rows:
                assert row["origin"][0] in ("", name), (folder, row["origin"])
                row["origin"] = (name, *row["origin"][1:])
            ends = not missing(study) and name not in CUT_OFF
            kept = controls(folder, rows)
            lines.update(rows=len(rows), control=len(kept), samples=sum(len(row["samples"]) for row in rows))
            lines.update(control_samples=sum(len(row["samples"]) for row in kept))
            rows = [*kept, *rows]
            if "spec" not in about:
                spec = {x: about.pop(x) for x in ("config", "data") if x in about}
                about = {"schema_version": 3, "study": name, "source": "measured", **about, "spec": {"name": name, **spec}}
            counted = folder / "counters.json"
            if path.is_file() and counted.is_file():
                about["counters"] = json.loads(counted.read_text())
            if "finished" in raw:
                about["finished"] = {"budget": raw["finished"]}
        even = {group.place: even_configs(study, group) for group, _ in groups(rows_of(study, "sweep"))} if about.get("even") else {}
        about["even"] = {**about.get("even", {}), **{place: e for place, e in even.items() if place in about["even"]}} if even else about.get("even")
        if about["even"] is None:
            del about["even"]
        for key in ("rows", "cols", "facet_rows", "facet_cols", "spec", "rungs", "importance"):
            if key in about:
                about[key] = renamed(about[key], key)
        how = "from version 1; values equal; pairs of noise floors, kept without a row, are rows of stage control"
        about["converted"] = how if version == 1 else "from version 2; values equal"
        about["schema_version"] = 3
        simulated = folder / "simulation.json"
        found.append(
            {
                "folder": folder,
                "about": about,
                "rows": rows,
                "ends": ends,
                "packed": not (folder / "rows.csv").is_file(),
                "simulation": in_terms_of_now(read_json(simulated)) if simulated.is_file() else None,
            }
        )
    assert version1
    out.write_bytes(pickle.dumps(found))
    print(f"read {len(found)} folders; of version 1: {dict(lines)}")


# New code -------------------------------------------------------------------------------------


def modules():
    """The packages of the checkout, wherever they lie by now."""
    import importlib

    def load(*names):
        for name in names:
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError:
                pass
        raise ModuleNotFoundError(names)

    def study(name):
        return load(f"hopper_gemm.tune.study.{name}", f"hopper_gemm.study.{name}")

    return {
        "row": study("row"), "schema": study("schema"), "reader": study("reader"), "files": study("files"), "pack": study("pack"),
        "ladder": load("hopper_gemm.tune.parameters", "hopper_gemm.ladder.config"),
        "model": load("hopper_gemm.model.config"),
        "point": load("hopper_gemm.model.point", "hopper_gemm.tune.point", "hopper_gemm.tune.study.point"),
        "problem": load("hopper_gemm.model.problem"),
    }


def made(one: dict, found: dict):
    config = None
    if one["config"] is not None:
        config = found["ladder"].config_of({x: y for x, y in one["config"].items() if x != "__kind__"})
        assert type(config).__name__ == one["config"]["__kind__"]
    point = found["point"].Point(found["problem"].GemmProblem(*one["problem"]), config, *one["way"])
    samples = tuple(found["point"].Sample(*sample) for sample in one["samples"])
    rest = (one["status"], one["reason"], one["figures"], samples, one["stage"], one["process"], *one["origin"])
    return found["row"].Row(point, *rest)


def write_new(dump: Path) -> None:
    found = modules()
    reader, files = found["reader"], found["files"]
    sizes = Counter()
    for one in pickle.loads(dump.read_bytes()):
        folder, about = one["folder"], one["about"]
        if one["rows"] is None:
            files.write_json(folder / "provenance.json", about)
            continue
        names = found["schema"].NAMES
        rows = [made(row, found) for row in one["rows"]]
        if one["packed"]:  # it takes no more rows: leave out the figures that none of its rows has
            used = {name for row in one["rows"] for name in row["figures"]}
            names = tuple(name for name in names if name not in found["schema"].CARRIED or name in used)
        lines = [found["row"].header(names), *(row.line(names) for row in rows)]
        about.pop("finished", None) if not one["ends"] else None
        if one["ends"]:
            about["finished"] = {**about.get("finished", {}), "rows": len(one["rows"]), "digest": reader.digest_of(lines)}
        for name in OLD_FILES:
            for suffix in (".csv", ".parquet"):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
        for name in ("compare.json", "counters.json", "rows.parquet"):
            (folder / name).unlink(missing_ok=True)
        text = "\n".join(lines) + "\n"
        (folder / "rows.csv").write_text(text)
        files.write_json(folder / "provenance.json", about)
        if one["packed"]:
            found["pack"].pack(folder)
            sizes["packed"] += 1
            sizes["bytes"] += (folder / "rows.parquet").stat().st_size
        else:
            sizes["csv"] += 1
            sizes["csv bytes"] += len(text)
        if one["simulation"] is not None:
            files.write_json(folder / "simulation.json", one["simulation"])
    print(f"written: {dict(sizes)}")


def check(dump: Path) -> None:
    found = modules()
    rows, fields = 0, 0
    for one in pickle.loads(dump.read_bytes()):
        if one["rows"] is None:
            found["reader"].read_provenance(one["folder"])
            continue
        study = found["reader"].read_study(one["folder"])
        now, old = [plain_new(row, found) for row in study.rows], one["rows"]
        assert len(now) == len(old), one["folder"]
        for number, (new, was) in enumerate(zip(now, old, strict=True)):
            assert new == was, (one["folder"], number, {x: (new[x], was[x]) for x in was if new[x] != was[x]})
            fields += len(was) + len(was["figures"]) + len(was["config"] or ()) + 3 * len(was["samples"])
        for path in one["folder"].iterdir():
            assert not (path.stem in OLD_FILES and path.suffix in (".csv", ".parquet")), path
        rows += len(now)
    print(f"checked: {rows} rows, {fields} values equal")


def plain_new(row, found) -> dict:
    point, problem = row.point, row.point.problem
    values = None
    if point.config is not None:
        values = {**found["ladder"].all_values(point.config), "__kind__": type(point.config).__name__}
    return {
        "problem": (problem.m, problem.n, problem.k, problem.dtype, problem.layouts),
        "config": values,
        "way": (point.regime, point.context, point.against, point.data),
        "status": row.status,
        "reason": row.reason,
        "figures": dict(row.figures),
        "samples": [tuple(one) for one in row.samples],
        "stage": row.stage,
        "process": row.process,
        "origin": (row.study, row.source, row.gpu, row.board),
    }


def main(checkout: Path, old: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before, dump = Path(folder, "old"), Path(folder, "rows.pickle")
        before.mkdir()
        archive = subprocess.run(["git", "-C", str(checkout), "archive", old, "hopper_gemm"], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(before)], input=archive.stdout, check=True)

        def step(word: str, package: Path, *rest: object) -> None:
            environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
            command = [sys.executable, "-P", __file__, word, *map(str, rest)]
            subprocess.run(command, check=True, env=environment)

        results = checkout / "results"
        step("--read", before, results, dump)
        step("--write", checkout, dump)
        shared = [path for path in results.rglob("studies-*.parquet")]
        for path in shared:
            path.unlink()
        step("--check", checkout, dump)
        print(f"removed {len(shared)} shared files")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--read", root, dump]:
            read_old(Path(root), Path(dump))
        case ["--write", dump]:
            write_new(Path(dump))
        case ["--check", dump]:
            check(Path(dump))
        case [checkout]:
            main(Path(checkout).resolve(), OLD)
        case [checkout, "--old", revision]:
            main(Path(checkout).resolve(), revision)
        case _:
            sys.exit(__doc__)