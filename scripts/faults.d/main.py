"""Injects real faults into real jobs on the lab cluster, and prints what Denpex said against what was done.

  scripts/faults list                     the faults, and what a right verdict says of each
  scripts/faults run                      every fault once; writes docs/accuracy.md
  scripts/faults run --only sigkill,nan   some of them (a word takes every fault whose name has it); writes no page
  scripts/faults run --repeat 3 --skew    each three times, with node clocks that are 45 s and 3 s off
  scripts/faults run --minus fr,exit,log:1   runs no job: diagnoses the kept runs again without that evidence, each
                                          alone and all together
  scripts/faults fit --minus fr,exit,log:1   runs no job: fits the evidence weights to the kept runs, measures them on
                                          each kind of fault while it is left out; writes docs/weights.md

The runs' evidence is kept in .faults/ of the checkout, until the next run. Needs root, as scripts/lab does. Ends with
status 1 where somebody innocent is named at a confidence of 0.9 or more, or less is right than LEAST says.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import again
import attempt
import catalog
import fit
import judge
import lab
import report

ROOT = Path(__file__).resolve().parents[2]
KEEP = ROOT / ".faults"
SLOTS = 3
LEAST = {"origin_right": 0.90, "class_right": 0.85, "category_right": 0.92}


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="list the faults")
    run = verbs.add_parser("run", help="inject faults and judge the verdicts")
    weigh = verbs.add_parser("fit", help="fit the evidence weights to the kept runs")
    for verb in (run, weigh):
        verb.add_argument("--only", default="", metavar="NAME,...", help="these faults only")
        verb.add_argument("--minus", default="", metavar="KIND,...", help=f"of {', '.join(again.KINDS)} (log:N)")
    weigh.add_argument("--hold", type=float, default=0.5, help="how far weights may move: standard deviation in nats")
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each fault")
    run.add_argument("--seed", type=int, default=1, help="draws ranks, steps, launchers and noise")
    run.add_argument("--skew", action="store_true", help="node clocks that are off")
    run.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        faults = catalog.load()
        if options.verb == "list":
            print(listing(faults))
            return 0
        chosen = select(faults, options.only)
        if options.verb == "fit":
            return fit_weights(options, chosen)
        if options.minus:
            return minus(options, chosen)
        return inject(options, faults, chosen)
    except (ValueError, RuntimeError) as error:
        print(f"scripts/faults: {error}", file=sys.stderr)
        return 2


def listing(faults: Sequence[catalog.Fault]) -> str:
    """Return the faults as a table."""
    rows = [
        (fault.id, "torch job" if fault.torch else "replay", catalog.ORIGINS[fault.origin], " or ".join(fault.classes),
         f"no evidence yet (needs {fault.needs})" if fault.needs else "counts")
        for fault in faults
    ]  # fmt: skip
    counted = sum(not fault.needs for fault in faults)
    return report.table(("fault", "job", "origin", "class", ""), rows) + f"\n{len(faults)} faults, {counted} count"


def select(faults: Sequence[catalog.Fault], only: str) -> list[catalog.Fault]:
    """Return the faults whose names contain one of the words; raises ValueError for a word that fits none."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if not any(word in fault.id for fault in faults):
            raise ValueError(f"there is no fault '{word}'; 'scripts/faults list' lists them")
    exact = {fault.id for fault in faults} & set(words)
    return [
        f for f in faults
        if not words or f.id in exact or any(word in f.id for word in words if word not in exact)
    ]  # fmt: skip


def row(run: attempt.Run, judged: judge.Judged, others: dict[str, int | None]) -> dict[str, Any]:
    """Return a run as its JSON object."""
    plan, fault = run.plan, run.plan.fault
    return {
        "fault": fault.id,
        "repeat": plan.repeat,
        "counted": not fault.needs,
        "needs": fault.needs,
        "expected": {
            "category": fault.category, "classes": list(fault.classes), "origin": fault.origin, "rank": plan.rank,
            "node": run.placed.get(plan.rank, {}).get("node"), "gpu": run.placed.get(plan.rank, {}).get("gpu"),
        },
        "got": {name: run.verdict.get(name) for name in ("category", "failure_class", "scope", "origins", "summary")},
        **{k: v for k, v in asdict(judged).items() if k != "confidence"},
        "confidence": judged.confidence,
        "origin": run.verdict.get("origin"),
        "baselines": {name: rank == plan.rank for name, rank in others.items()},
        "plan": {name: getattr(plan, name) for name in ("world", "launcher", "prints", "noise", "step")},
        "job": run.job,
        "seconds": round(run.seconds, 1),
    }  # fmt: skip


def said(entry: dict[str, Any]) -> str:
    """Return one line on one run: what was said, and whether that is right."""
    origin = entry["origin"] or {}
    where = "nobody" if origin.get("rank") is None and origin.get("node") is None else ""
    if origin.get("rank") is not None:
        where = f"rank {origin['rank']}"
    elif origin.get("node"):
        where = str(origin["node"])
    elif entry["got"]["origins"]:
        where = "ranks " + ",".join(str(place["rank"]) for place in entry["got"]["origins"])
    marks = "".join(
        letter if entry[name] else "."
        for letter, name in (("O", "origin_right"), ("C", "class_right"), ("K", "category_right"))
    )
    note = " WRONG PLACE" if entry["wrong_place"] else ""
    wanted = entry["expected"]
    right = (
        f"rank {wanted['rank']}" if wanted["origin"] in ("rank", "gpu") else f"{wanted['origin']} ({wanted['node']})"
    )
    text = f"{marks} {entry['fault']:<26} {entry['seconds']:5.1f} s  {entry['got']['failure_class']} {where}"
    if not entry["counted"]:
        return f"{text}  (no evidence yet: needs {entry['needs']})"
    return f"{text} {entry['confidence']:.2f}  (is: {wanted['classes'][0]} {right}){note}"


def inject(options: argparse.Namespace, faults: Sequence[catalog.Fault], chosen: Sequence[catalog.Fault]) -> int:
    """Run the faults' jobs, judge, print, and keep."""
    out = sys.stderr if options.json else sys.stdout
    if os.geteuid() != 0:
        raise RuntimeError("the lab cluster makes namespaces and users, so this needs root")
    plans = [catalog.plan(fault, repeat, options.seed) for repeat in range(options.repeat) for fault in chosen]
    # What waits longest begins first.
    plans.sort(key=lambda plan: "--time=1" not in plan.fault.options)
    print(f"faults: a lab of {SLOTS} sets of {lab.NODES_OF_A_JOB} nodes for {len(plans)} runs", file=out, flush=True)
    lab.up(SLOTS, options.skew)
    slurm = lab.lab("ctl", "--", "slurmctld", "-V").split()[-1]
    KEEP.mkdir(exist_ok=True)
    free: queue.Queue[int] = queue.Queue()
    for slot in range(SLOTS):
        free.put(slot)

    def one(plan: catalog.Plan) -> dict[str, Any]:
        slot = free.get()
        try:
            run = attempt.Attempt(plan, lab.nodes_of(slot), KEEP).run()
        finally:
            free.put(slot)
        return row(run, judge.judge(plan, run.placed, run.verdict), judge.baselines(KEEP / plan.key))

    began, runs = time.monotonic(), []
    try:
        with ThreadPoolExecutor(SLOTS) as pool:
            for future in as_completed([pool.submit(one, plan) for plan in plans]):
                runs.append(future.result())
                head = f"[{len(runs):3}/{len(plans)} {time.monotonic() - began:5.0f} s]"
                print(head, said(runs[-1]), file=out, flush=True)
    finally:
        lab.lab("down", timeout=120)
    order = {fault.id: number for number, fault in enumerate(faults)}
    runs.sort(key=lambda run: (order[run["fault"]], run["repeat"]))
    settings = {
        "seed": options.seed, "repeat": options.repeat, "skew": options.skew, "slurm": slurm, "again": False,
    }  # fmt: skip
    document = {"settings": settings, "runs": runs, "summary": report.summary(runs)}
    (KEEP / "runs.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    finish(options, document, {})
    if len(chosen) == len(faults):
        print(f"faults: {report.write(runs, faults, settings, {}).relative_to(ROOT)} is written", file=out)
    return status(runs)


class Kept:
    """The runs that are kept, and what may be taken away from each."""

    def __init__(self, chosen: Sequence[catalog.Fault], minus: str) -> None:
        """Read the list; raises ValueError where no runs are kept or ``minus`` names unknown evidence."""
        path = KEEP / "runs.json"
        if not path.exists():
            raise ValueError("no runs are kept here; 'scripts/faults run' makes them")
        self.document = json.loads(path.read_text(encoding="utf-8"))
        self._by_id = {fault.id: fault for fault in chosen}
        self.runs = [
            run for run in self.document["runs"] if run["fault"] in self._by_id and run["got"]["failure_class"]
        ]
        asked = again.kinds(minus)
        self.sets: dict[str, list[str]] = {"all": [], **{f"without {kind}": [kind] for kind in asked}}
        if len(asked) > 1:
            self.sets["without " + " ".join(asked)] = asked

    def plan(self, run: dict[str, Any]) -> catalog.Plan:
        """Return a run's plan."""
        made = catalog.plan(self._by_id[run["fault"]], run["repeat"], self.document["settings"]["seed"])
        return replace(made, rank=run["expected"]["rank"])

    def placed(self, plan: catalog.Plan) -> dict[int, dict[str, Any]]:
        """Return where a run's ranks were."""
        text = (KEEP / plan.key / "placed.json").read_text(encoding="utf-8")
        return {int(rank): place for rank, place in json.loads(text).items()}

    def judged(self, run: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
        """Return a run's JSON object with another verdict."""
        plan = self.plan(run)
        placed = self.placed(plan)
        made = row(attempt.Run(plan, run["job"], verdict, placed, 0.0), judge.judge(plan, placed, verdict), {})
        return made | {"baselines": run["baselines"]}


def shown(listed: Sequence[Any], quiet: bool) -> Iterator[Any]:
    """Yield what is listed, and show on a terminal how far it is."""
    for number, one in enumerate(listed):
        if not quiet and sys.stderr.isatty():
            print(f"\r{number}/{len(listed)} ", end="", file=sys.stderr)
        yield one


def minus(options: argparse.Namespace, chosen: Sequence[catalog.Fault]) -> int:
    """Diagnose the kept runs again with all evidence, without each kind, and without all of the kinds."""
    kept = Kept(chosen, options.minus)
    diagnose = again.Again()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in kept.sets}
    for run in shown(kept.runs, options.json):
        for name, kinds in kept.sets.items():
            found[name].append(kept.judged(run, diagnose(KEEP / kept.plan(run).key, kinds)))
    everything = found.pop("all")
    finish(options, {**kept.document, "runs": everything, "summary": report.summary(everything)}, found)
    if not options.only:
        report.write(everything, catalog.load(), {**kept.document["settings"], "again": True}, found)
    return max(status(everything), *(int(report.summary(rows)["wrong_place_at_0.9"] > 0) for rows in found.values()))


def fit_weights(options: argparse.Namespace, chosen: Sequence[catalog.Fault]) -> int:
    """Fit the evidence weights to the kept runs, and judge each kind of fault with the weights that the others give."""
    kept = Kept(chosen, options.minus)
    diagnose = again.Again()
    samples: list[fit.Sample] = []
    cases: list[tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = []
    for run in shown([run for run in kept.runs if run["counted"]], quiet=False):
        for name, kinds in kept.sets.items():
            case, weigh = diagnose.case(KEEP / kept.plan(run).key, kinds)
            cases.append((name, run, weigh))
            one_rank = run["expected"]["origin"] in ("rank", "gpu")
            made = fit.sample(run["fault"], case, run["expected"]["rank"] if one_rank else None)
            # Where nobody, a node or the whole job is the origin, other rules than the weights decide.
            samples += [made] if made is not None and one_rank else []
    stands = {name: [kept.judged(run, weigh()) for of, run, weigh in cases if of == name] for name in kept.sets}
    fitted: dict[str, list[dict[str, Any]]] = {name: [] for name in kept.sets}
    for kind in shown(sorted({run["fault"] for _, run, _ in cases}), quiet=False):
        values = fit.fit([one for one in samples if one.kind != kind], options.hold)
        with fit.weights(fit.rounded(values)):
            for name, run, weigh in cases:
                if run["fault"] == kind:
                    fitted[name].append(kept.judged(run, weigh()))
    everywhere = fit.rounded(fit.fit(samples, options.hold))
    page = report.weights(stands, fitted, fit.standing(), everywhere, fit.used(samples), kept.document["settings"])
    print(page)
    if not options.only:
        (report.DOCS / "weights.md").write_text(page, encoding="utf-8")
    return 0


def status(runs: Sequence[dict[str, Any]]) -> int:
    """Return 1 where an innocent is named with confidence, or too little is right."""
    s = report.summary(runs)
    low = any(s[name] is not None and s[name] < least for name, least in LEAST.items())
    return int(low or s["wrong_place_at_0.9"] > 0)


def finish(options: argparse.Namespace, document: dict[str, Any], less: dict[str, list[dict[str, Any]]]) -> None:
    """Print what was found."""
    if options.json:
        summaries = {name: report.summary(rows) for name, rows in less.items()}
        print(json.dumps({**document, **({"minus": summaries} if less else {})}))
        return
    runs = document["runs"]
    print(f"\n{report.figures(runs)}\n\n{report.by_evidence(runs, less)}")
    s = document["summary"]
    print(
        f"\n{s['faults']} faults, {s['counted_faults']} count; {s['runs']} runs. Innocent named: {s['wrong_place']}, "
        f"at >= 0.9: {s['wrong_place_at_0.9']}. Brier {s['brier']}"
    )


if __name__ == "__main__":
    sys.exit(main())
