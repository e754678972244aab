"""Sums up judged runs, and writes docs/accuracy.md with its picture."""

from __future__ import annotations

import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
from catalog import ORIGINS, Fault
from judge import BASELINES

Row = dict[str, Any]
DOCS = Path(__file__).parents[2] / "docs"
PAGE = Path(__file__).with_name("accuracy.md.j2")
_BINS = 5
WEIGHTS = """# The evidence weights, fitted and measured

Written by `scripts/faults fit` on {day}, revision {revision}; every number comes from that command. The runs are the
matrix's (seed {settings[seed]}, {settings[repeat]} run(s) of each fault), diagnosed again with all evidence and without
parts of it.

Right, with the weights that stand in `denpex/engine/weights.py`, and with weights that were fitted to all *other* kinds
of fault and never saw the kind that they are judged on:

{right}

Weights in nats; none moves far where few kinds of fault say anything of it.

{weights}
"""


def summary(runs: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of all runs that count, as shares of 1."""
    counted = [run for run in runs if run["counted"]]
    ranks = [run for run in counted if run["expected"]["origin"] in ("rank", "gpu")]
    return {
        "runs": len(runs),
        "faults": len({run["fault"] for run in runs}),
        "counted_runs": len(counted),
        "counted_faults": len({run["fault"] for run in counted}),
        "origin_right": _share(counted, "origin_right"),
        "class_right": _share(counted, "class_right"),
        "category_right": _share(counted, "category_right"),
        "abstained": _share(counted, "abstained"),
        "wrong_place": sum(run["wrong_place"] for run in runs),
        "wrong_place_at_0.9": sum(run["wrong_place"] and run["confidence"] >= 0.9 for run in runs),
        "brier": brier(counted),
        "baselines": {name: _mean(run["baselines"][name] for run in ranks) for name in BASELINES},
        "baseline_runs": len(ranks),
    }


def brier(runs: Iterable[Row]) -> float | None:
    """Return the mean squared difference of confidence and truth (origin and class right) of what was answered."""
    return _mean(
        (run["confidence"] - float(run["origin_right"] and run["class_right"])) ** 2
        for run in runs
        if not run["abstained"]
    )


def _share(runs: Sequence[Row], name: str) -> float | None:
    return _mean(run[name] for run in runs)


def _mean(values: Iterable[float]) -> float | None:
    listed = [float(value) for value in values]
    return round(sum(listed) / len(listed), 4) if listed else None


def percent(value: float | None) -> str:
    """Return a share as a percentage; a dash where nothing was counted."""
    return "-" if value is None else f"{100 * value:.1f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table that is aligned for reading as text too."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def figures(runs: Sequence[Row]) -> str:
    """Return the main table: Denpex, and each simpler rule on the runs in which one rank is the origin."""
    s = summary(runs)
    rows = [
        ["Denpex", *(percent(s[name]) for name in ("origin_right", "class_right", "category_right")), s["counted_runs"]]
    ]
    rows += [[name, percent(s["baselines"][name]), "-", "-", s["baseline_runs"]] for name in BASELINES]
    return table(("rule", "origin right", "class right", "category right", "runs"), rows)


def by(runs: Sequence[Row], name: str, key: Callable[[Row], str]) -> str:
    """Return the figures of each group of runs."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for run in runs:
        if run["counted"]:
            groups[key(run)].append(run)
    rows = []
    shares = ("origin_right", "class_right", "category_right", "abstained")
    for group, members in sorted(groups.items()):
        s = summary(members)
        rows.append(
            [
                group,
                len(members),
                *(percent(s[k]) for k in shares),
                s["wrong_place"],
                s["wrong_place_at_0.9"],
                s["brier"],
            ]
        )
    head = (
        name,
        "runs",
        "origin right",
        "class right",
        "category right",
        "abstained",
        "wrong place",
        "of these >= 0.9",
        "Brier",
    )
    return table(head, rows)


def write(runs: Sequence[Row], faults: Sequence[Fault], settings: dict[str, Any], less: dict[str, list[Row]]) -> Path:
    """Write docs/accuracy.md and its picture; ``less``: evidence that was taken away -> the runs, judged again."""
    picture(runs, DOCS / "accuracy.svg")
    template = jinja2.Template(
        PAGE.read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    text = template.render(
        settings=settings,
        day=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        revision=_revision(),
        python=platform.python_version(),
        s=summary(runs),
        figures=figures(runs),
        by_category=by(runs, "category", lambda run: str(run["expected"]["category"])),
        by_launcher=by(runs, "launcher, ranks", lambda run: f"{run['plan']['launcher']}, {run['plan']['world']}"),
        by_prints=by(runs, "progress", lambda run: "of every rank" if run["plan"]["prints"] == "all" else "of rank 0"),
        by_noise=by(runs, "noise", lambda run: "with" if run["plan"]["noise"] else "without"),
        less=by_evidence(runs, less) if less else "",
        each=_each(runs, faults),
    )
    path = DOCS / "accuracy.md"
    path.write_text(text, encoding="utf-8")
    return path


def by_evidence(runs: Sequence[Row], less: dict[str, list[Row]]) -> str:
    """Return the figures with all evidence, and without each kind."""
    listed = [{**run, "evidence": name} for name, rows in {"all": runs, **less}.items() for run in rows]
    return by(listed, "evidence", lambda run: str(run["evidence"]))


def weights(
    stands: dict[str, list[Row]],
    fitted: dict[str, list[Row]],
    values: dict[str, float],
    fit: dict[str, float],
    used: dict[str, int],
    settings: dict[str, Any],
) -> str:
    """Return docs/weights.md: how right the standing weights are, and those fitted to other kinds, and the weights."""
    of = {f"{name}: as they stand": rows for name, rows in stands.items()}
    of |= {f"{name}: fitted to the other kinds": rows for name, rows in fitted.items()}
    listed = [{**run, "evidence": name} for name, rows in of.items() for run in rows]
    return WEIGHTS.format(
        day=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        revision=_revision(),
        settings=settings,
        right=by(listed, "evidence: weights", lambda run: str(run["evidence"])),
        weights=table(
            ("weight", "stands", "fitted to all kinds", "kinds of fault that use it"),
            ((name, values[name], fit[name], used[name]) for name in values),
        ),
    )


def _each(runs: Sequence[Row], faults: Sequence[Fault]) -> str:
    rows = []
    for fault in faults:
        mine = [run for run in runs if run["fault"] == fault.id]
        if not mine:
            continue
        right, named = (f"{sum(run[name] for run in mine)}/{len(mine)}" for name in ("origin_right", "class_right"))
        if fault.needs:
            right, named = f"{right} abstained", f"no evidence yet (needs {fault.needs})"
        rows.append((fault.id, fault.title, ORIGINS[fault.origin], fault.classes[0], right, named))
    return table(("fault", "what is done", "expected origin", "expected class", "origin right", "class right"), rows)


def _revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=DOCS.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def picture(runs: Sequence[Row], path: Path) -> None:
    """Draw the reliability diagram: how often verdicts of a confidence were right."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "denpex"  # the same runs give the same file
    from matplotlib import pyplot as plt

    answered = [run for run in runs if run["counted"] and not run["abstained"]]
    figure, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
    axes.plot([0, 1], [0, 1], "--", color="grey", linewidth=1, label="as sure as right")
    for low in range(_BINS):
        inside = [run for run in answered if low <= min(run["confidence"] * _BINS, _BINS - 1e-9) < low + 1]
        if inside:
            sure = sum(run["confidence"] for run in inside) / len(inside)
            right = sum(run["origin_right"] and run["class_right"] for run in inside) / len(inside)
            axes.scatter([sure], [right], s=30 + 4 * len(inside), color="tab:blue", zorder=3)
            axes.annotate(f"{len(inside)} runs", (sure, right), (6, -12), textcoords="offset points", fontsize=8)
    axes.set(xlabel="confidence of the verdict", ylabel="origin and class right", xlim=(0, 1.05), ylim=(0, 1.05))
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
