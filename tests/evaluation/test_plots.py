import itertools

import pandas as pd
import pytest

from recollect.evaluation import plots


def frame():
    places = itertools.product(("base", "context"), ("one", "two", "three"), range(3), (1, 4, 32))
    table = pd.DataFrame(places, columns=["model", "data", "training_seed", "shots"])
    value = 50 + table.shots + table.training_seed + 3 * (table.model == "context")
    classes = table.data.map({"one": 10, "two": 20, "three": 30})
    return table.assign(protocol="few-shot", method="tip-adapter", classes=classes, value=value)


@pytest.mark.parametrize(("panels", "shape"), [(1, (1, 1)), (5, (1, 5)), (6, (2, 3)), (11, (3, 4))])
def test_panels_fill_rows_of_equal_length(panels, shape):
    rows = pd.concat([frame().assign(method=f"m{number}") for number in range(panels)])
    curves = plots.few_shot_curves(rows, ["base"], [f"m{number}" for number in range(panels)], {})
    assert curves.axes[0].get_gridspec().get_geometry() == shape
    assert sum(axis.get_visible() for axis in curves.axes) == panels


def test_figures_show_the_values_of_the_table():
    curves = plots.few_shot_curves(frame(), ["base", "context"], ["tip-adapter"], {"base": 45.0})
    lines = [bars.lines[0] for bars in curves.axes[0].containers]
    assert [list(line.get_ydata()) for line in lines] == [[52, 55, 83], [55, 58, 86]]
    styles = [(line.get_marker(), line.get_linestyle(), line.get_color(), tuple(line.get_xdata())) for line in lines]
    assert all(len(set(each)) == len(lines) for each in zip(*styles, strict=True)), "coinciding curves differ in style"
    per_set = plots.gain_per_data_set(frame(), "context", "base", "tip-adapter", 32)
    assert [patch.get_height() for patch in per_set.axes[0].patches] == [3.0, 3.0, 3.0]
    assert per_set.get_supxlabel() == "mean of 3 training seeds"
    single = plots.few_shot_curves(frame().query("training_seed == 0"), ["base"], ["tip-adapter"])
    assert "one training seed" in single.get_supxlabel().replace("\n", " ")
    named = {curves.get_supxlabel(), per_set.axes[0].get_title(), per_set.axes[0].get_ylabel()}
    assert named == {
        "mean of 3 sets: one, two, three; level dashes:\nzero-shot; bars: std over 3 training seeds",
        "context minus base",
        "Default Tip, 32 shots:\ngain (points)",
    }


def test_the_file_extension_sets_the_format_of_a_figure(tmp_path):
    figure, _ = plots.new_figure()
    for ending, magic in {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}.items():
        plots.save_figure(figure, tmp_path / f"figure.{ending}")
        assert (tmp_path / f"figure.{ending}").read_bytes().startswith(magic)
