"""Attention maps, t-SNE maps, and distances between sets of embeddings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recollect.core.errors import UserError
from recollect.evaluation.plots import save_figure
from recollect.models import build_model
from recollect_papers.prefix.attention import _word_of, attention_figure, attention_map, text_attention
from recollect_papers.prefix.maps import Cloud, clouds, project_tsne, same_set_share, scatter

TEXTS = ["a photo of a red house", "a drawing of an airplane", "some captions about two dogs"]


@pytest.fixture(scope="module")
def model():
    encoder = build_model("tiny", texts=TEXTS * 4)
    encoder.add_prefixes(("caption", "label"), length=2)
    return encoder


@pytest.mark.parametrize("prefix", ["caption", "label", None])
def test_maps_are_means_over_heads_with_joined_pieces_and_padding(model, prefix):
    shown = attention_map(model, "a drawing of airplanes", prefix)
    found = text_attention(model, ["a drawing of airplanes"], prefix)
    assert [word for word, own in zip(shown.words, shown.content, strict=True) if own] == [
        "a", "drawing", "of", "airplanes",
    ]  # fmt: skip
    assert shown.words[:2] == ((f"<|{prefix}|>", f"<|{prefix}:2|>") if prefix else ("a", "drawing"))
    assert shown.words.count(model.tokenizer.pad_token) == 1
    assert len(shown.words) < len(found.tokens[0])
    for layer, weights in zip(found.layers, shown.weights, strict=True):
        mean = sum(layer[0, head].double() for head in range(layer.shape[1])) / layer.shape[1]
        padding = [token == model.tokenizer.pad_token for token in found.tokens[0]]
        assert weights[-1] == pytest.approx(float(mean[padding].sum()), abs=1e-6)
        assert weights.sum() == pytest.approx(1, abs=1e-5)


def test_the_spread_is_the_effective_number_of_attended_words(model):
    shown = attention_map(model, TEXTS[0])
    own = [place for place, content in enumerate(shown.content) if content]
    for layer, spread in zip(shown.weights, shown.spread, strict=True):
        shares = [layer[place] / sum(layer[other] for other in own) for place in own]
        assert spread == pytest.approx(np.exp(-sum(share * np.log(share) for share in shares)))
    assert (shown.spread <= len(own) + 1e-9).all()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["▁a", "▁air", "plane", "</s>", "<pad>", "<pad>"], [0, 1, 1, 2, 3, 3]),
        (["<s>", "a</w>", "air", "plane</w>", "</s>"], [0, 1, 2, 2, 3]),
        (["[CLS]", "a", "air", "##plane", "[SEP]"], [0, 1, 2, 2, 3]),
        (["a", "Ġair", "plane", "</s>", "</s>"], [0, 1, 1, 2, 2]),
    ],
)
def test_pieces_are_joined_for_every_kind_of_tokenizer(tokens, words):
    assert _word_of(tokens, {"<s>", "</s>", "<pad>", "[CLS]", "[SEP]"}) == words


def test_texts_and_models_without_attention_are_rejected(model):
    with pytest.raises(UserError, match="bag of words"):
        attention_map(build_model("vector-mlp", texts=TEXTS), "a photo")
    with pytest.raises(UserError, match="empty text"):
        attention_map(model, "  ")


@given(st.integers(0, 50))
def test_scatter_is_the_variance_within_and_between(seed):
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(3), [4, 6, 2]))
    points = generator.normal(size=(12, 5))
    found = scatter(points, labels)
    means = [points[labels == label].mean(0) for label in range(3)]
    within = [
        sum(((points[row] - means[label]) ** 2).sum() for row in np.flatnonzero(labels == label))
        / (labels == label).sum()
        for label in range(3)
    ]
    center = sum(means) / 3
    assert found["within"] == pytest.approx(sum(within) / 3)
    assert found["between"] == pytest.approx(sum(((mean - center) ** 2).sum() for mean in means) / 3)
    assert found["between / within"] == pytest.approx(found["between"] / found["within"])


def test_disjoint_sets_have_a_same_set_share_of_100_and_mixed_sets_less():
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 100, 4))
    assert same_set_share(one, other + 100) == 100
    assert 30 < same_set_share(one, other) < 70
    repeated = np.zeros((5, 4))
    assert same_set_share(repeated, repeated + 1) == 100


def test_clusters_stay_clusters_in_the_plane_for_a_fixed_seed():
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.normal(size=(20, 6)) * 0.05 + 3 * np.eye(6)[number] for number in range(3)])
    plane = project_tsne(points, seed=1)
    assert plane.shape == (60, 2)
    assert np.array_equal(plane, project_tsne(points, seed=1))
    means = [plane[20 * number : 20 * number + 20].mean(0) for number in range(3)]
    for number in range(3):
        own = np.linalg.norm(plane[20 * number : 20 * number + 20] - means[number], axis=1).max()
        assert all(np.linalg.norm(means[number] - means[other]) > own for other in range(3) if other != number)
    with pytest.raises(UserError, match="3 points are too few"):
        project_tsne(points[:3])
    assert np.isfinite(project_tsne(np.ones((8, 3)))).all()


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_the_figures_are_drawn(model, tmp_path, ending):
    shown = [
        [("label prefix", attention_map(model, text, "label")), ("no", attention_map(model, text))] for text in TEXTS
    ]
    points = np.random.default_rng(0).normal(size=(40, 2))
    figures = {
        "attention": attention_figure([*shown, shown[0][:1]]),
        "clouds": clouds(
            [Cloud("few", points, np.arange(40) % 2, ("one", "two")), Cloud("many", points, np.arange(40))]
        ),
    }
    for name, figure in figures.items():
        path = tmp_path / f"{name}.{ending}"
        save_figure(figure, path)
        if ending == "pdf":
            assert path.read_bytes().startswith(b"%PDF")
        else:
            picture = np.asarray(Image.open(path).convert("L"))
            assert min(picture.shape) > 200
            assert (picture < 128).mean() > 0.0005
