"""The scoring of cases: what counts as right, partial, abstained, wrong, and as an accusation."""

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def score():
    path = str(Path(__file__).parents[2] / "scripts" / "score")
    loader = importlib.machinery.SourceFileLoader("score", path)
    spec = importlib.util.spec_from_loader("score", loader)
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.modules["score"] = module
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def verdict(name, category, rank=None):
    return {"failure_class": name, "category": category, "origin": None if rank is None else {"rank": rank}}


@pytest.mark.parametrize(
    ("said", "outcome", "accusation", "found"),
    [
        (verdict("cuda-out-of-memory", "ml_numerical", 3), "right", False, True),
        (verdict("loss-nan", "ml_numerical", 3), "partial", False, True),
        (verdict("unknown", "unknown"), "abstained", False, False),
        (verdict("disk-full", "environment_configuration", 1), "wrong", True, False),
        (verdict("cuda-out-of-memory", "ml_numerical", 0), "right", True, False),
        (verdict("cuda-out-of-memory", "ml_numerical"), "right", False, False),
    ],
)
def test_a_verdict_is_judged_by_class_category_and_rank(score, said, outcome, accusation, found):
    truth = {"category": "ml_numerical", "classes": ["cuda-out-of-memory"], "origin_rank": 3}
    assert score.judge(truth, said) == (outcome, accusation, found)


def test_any_rank_is_an_accusation_where_nothing_failed(score):
    truth = {"category": "none", "classes": ["no-failure"], "origin_rank": None}
    assert score.judge(truth, verdict("no-failure", "none")) == ("right", False, None)
    assert score.judge(truth, verdict("loss-nan", "ml_numerical", 0)) == ("wrong", True, None)


def test_saying_unknown_is_right_where_unknown_is_accepted(score):
    truth = {"category": "unknown", "classes": ["process-crashed", "unknown"], "origin_rank": None}
    assert score.judge(truth, verdict("unknown", "unknown"))[0] == "right"


def test_a_case_is_diagnosed_without_its_name_and_truth(score, tmp_path, monkeypatch, capsys):
    case = tmp_path / "cases" / "tell-tale-name"
    case.mkdir(parents=True)
    (case / "truth.yaml").write_text("category: ml_numerical\nclasses: [loss-nan]\norigin_rank: 1\n")
    (case / "rank_1.log").write_text("x\n")
    seen = []

    def diagnosis(paths):
        seen.append((str(paths[0]), sorted(path.name for path in paths[0].iterdir())))
        return verdict("loss-nan", "ml_numerical", 2) | {"confidence": 0.9}

    from denpex.cli import diagnose

    monkeypatch.setattr(diagnose, "diagnosis", diagnosis)
    assert score.main([str(tmp_path / "cases")]) == 0
    printed = capsys.readouterr().out
    assert "wrong accusation: tell-tale-name: rank 2, loss-nan (0.9)" in printed
    assert seen[0][1] == ["rank_1.log"]
    assert "tell-tale" not in seen[0][0]
    assert score.main([str(tmp_path / "cases"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "right"


def test_a_directory_without_cases_is_an_error(score, tmp_path, capsys):
    assert score.main([str(tmp_path)]) == 1
    assert "there is no case" in capsys.readouterr().err
