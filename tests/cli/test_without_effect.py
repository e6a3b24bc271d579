"""An option without effect gives a one-line warning, and the command continues."""

import pytest

RETRIEVAL, FEW = ("evaluate", "retrieval", "m/m"), ("evaluate", "few-shot")
IDLE = (
    (("classify", "--names", "a", "b", "--save", "saved", "--model", "./none"), ("--alpha", "0.2")),
    (("classify", "--names", "a", "b", "--save", "saved", "--model", "./none"), ("--out", "p")),
    (("caption", "none.csv", "--model", "./none", "--out", "c.jsonl"), ("--encoder", "m")),
    (("index", "build", "none.csv?split=val", "--out", "i"), ("--split", "train")),
    (("evaluate", "zero-shot", "m/m"), ("--support", "all")),
    (("evaluate", "zero-shot", "m/m"), ("--copies", "b=c")),
    (("evaluate", "zero-shot", "m/m"), ("--form", "clip-benchmark")),
    (("evaluate", "zero-shot", "m/m"), ("--k", "3")),
    (("evaluate", "zero-shot", "m/m", "--index", "i", "--fusion", "f"), ("--weight", "0.2")),
    (("train", "reco", "--index", "i", "--data", "none.csv", "--preset", "paper"), ("--weight", "0.2")),
    (("evaluate", "probe", "m/m"), ("--templates", "t.txt")),
    (("evaluate", "probe", "m/m"), ("--prefix", "label")),
    (("evaluate", "probe", "m/m", "--within", "test"), ("--query", "val")),
    (("evaluate", "multilabel", "m/m", "--no-probe"), ("--support", "val")),
    (RETRIEVAL, ("--episode.k", "4")),
    ((*RETRIEVAL, "--methods", "normalized"), ("--prefix", "label")),
    ((*FEW, "m/m"), ("--effort", "0.5")),
    ((*FEW, "m/m"), ("--texts", "t.npy")),
)


@pytest.mark.parametrize(("command", "option"), IDLE, ids=lambda part: " ".join(part[-2:]))
def test_an_option_without_effect_is_a_warning(recollect, command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ("--data", "none.csv") if command[0] == "evaluate" else ()
    *warnings, error = recollect(*command, *data, *option, check=False).stderr.splitlines()
    assert any(line.startswith(f"warning: {option[0]} ") and "no effect" in line for line in warnings)
    assert error.startswith("error: "), "the model, picture or file is missing"
    plain = recollect(*command, *data, check=False).stderr.splitlines()
    assert len(plain) == len(warnings), "the option adds one line"


def test_options_for_templates_prefixes_and_labels_have_no_effect_on_embeddings(recollect, tmp_path):
    words = ("evaluate", "few-shot", "--features", tmp_path / "a.parquet")
    for option in (("--templates", "t.txt"), ("--prefix", "label"), ("--feature-labels", "l.npy")):
        assert f"warning: {option[0]} has no effect" in recollect(*words, *option, check=False).stderr
