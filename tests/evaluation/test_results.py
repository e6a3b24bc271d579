import json
import math

import pytest

from recollect.core.errors import UserError
from recollect.evaluation.results import Result, load_result, load_results, summarise


def make(**changes):
    fields = {"protocol": "zero-shot", "model": "runs/a/model", "data": "eurosat", "seed": 3}
    return Result(**{**fields, "rows": [{"metric": "top-1", "value": 61.5}], **changes})


def test_a_result_reads_back_as_it_was_written(tmp_path):
    path = make().save(tmp_path)
    assert load_result(path) == make()


def test_different_evaluations_never_share_a_file(tmp_path):
    results = [make(), make(seed=4), make(data="dtd"), make(model="runs/b/model"), make(protocol="few-shot")]
    assert len({result.save(tmp_path) for result in results}) == len(results)
    assert len(load_results(tmp_path)) == len(results)


def test_a_result_of_another_format_is_refused_by_name(tmp_path):
    path = make().save(tmp_path)
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "format": 99}))
    with pytest.raises(UserError, match=r"not a result of format 1 \(found 99\)"):
        load_result(path)
    path.write_text(json.dumps({**value, "colour": "red"}))
    with pytest.raises(UserError, match="not a result file"):
        load_result(path)


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    with pytest.raises(UserError, match="no result files"):
        load_results(tmp_path)


def test_summary_is_mean_and_sample_deviation():
    summary = summarise([1.0, 2.0, 6.0])
    assert summary.mean == 3.0
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert str(summary) == "3.0 ± 2.6"
    assert summary.signed() == "+3.0 ± 2.6"


def test_a_single_run_claims_no_deviation():
    assert str(summarise([12.34])) == "12.3"
    assert math.isnan(summarise([12.34]).std)
    with pytest.raises(ValueError):
        summarise([])
