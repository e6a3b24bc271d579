import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from recollect.core.errors import UserError
from recollect.evaluation import results
from recollect.evaluation.results import Result, joint_identity, load_results, save_together, summarize


def make(**changes):
    fields = {"protocol": "zero-shot", "model": "runs/a/model", "data": "eurosat", "seed": 3}
    return Result(**{**fields, "rows": [{"metric": "top-1", "value": 61.5}], **changes})


def test_a_saved_result_loads_unchanged(tmp_path):
    path = make().save(tmp_path)
    assert load_results(path) == [make()]


def test_different_evaluations_never_share_a_file(tmp_path):
    results = [make(), make(seed=4), make(data="dtd"), make(model="runs/b/model"), make(protocol="few-shot"),
               make(model="runs-a/model"), make(settings={"methods": ["gda"]}), make(settings={"shots": [1, 2]}),
               make(settings={"data_content": "a"}), make(settings={"data_content": "b"}), make(data="x" * 300),
               make(data="x" * 301)]  # fmt: skip
    assert len({result.save(tmp_path) for result in results}) == len(results)
    assert len(load_results(tmp_path)) == len(results)


def test_repeating_an_evaluation_replaces_only_its_own_result(tmp_path):
    path = make(settings={"shots": (1, 2)}).save(tmp_path)
    again = make(settings={"shots": [1, 2]}, rows=[{"metric": "top-1", "value": 62.0}])
    assert again.save(tmp_path) == path
    assert load_results(path)[0].rows[0]["value"] == 62.0
    assert joint_identity([again]) == again.identity
    assert joint_identity([again, make(), again]) == joint_identity([make(), again]) != joint_identity([make(), make()])


def test_a_shared_file_replaces_only_results_of_the_same_evaluation(tmp_path):
    path = tmp_path / "all.json"
    save_together([make(), make(seed=4)], path)
    save_together([make(rows=[]), make(seed=5)], path)
    assert [(each["seed"], len(each["rows"])) for each in json.loads(path.read_text())] == [(4, 1), (3, 0), (5, 1)]
    assert load_results(path) == [make(seed=4), make(rows=[]), make(seed=5)]
    path.write_text('{"notes": "mine"}')
    with pytest.raises(UserError):
        save_together([make()], path)
    assert json.loads(path.read_text()) == {"notes": "mine"}


def test_a_result_of_another_format_is_rejected(tmp_path):
    path = make().save(tmp_path)
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "format": 99}))
    with pytest.raises(UserError, match="99"):
        load_results(path)
    path.write_text(json.dumps({**value, "color": "red"}))
    with pytest.raises(UserError):
        load_results(path)


def test_summary_is_mean_and_sample_deviation():
    summary = summarize([1.0, 2.0, 6.0])
    assert summary.mean == 3.0
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert str(summary) == "3.0 ± 2.6"
    assert summary.signed() == "+3.0 ± 2.6"


def test_concurrent_evaluations_can_share_a_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "all.json"
    load = results.load_results

    def slow_load(path):
        loaded = load(path)
        time.sleep(0.05)
        return loaded

    monkeypatch.setattr(results, "load_results", slow_load)
    save_together([make(seed=0)], path)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda seed: save_together([make(seed=seed)], path), range(1, 5)))
    assert sorted(result["seed"] for result in json.loads(path.read_text())) == [0, 1, 2, 3, 4]
