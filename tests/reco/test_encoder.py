"""The retrieval-enhanced encoder: a drop-in encoder that reads the current index."""

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.evaluation.features import FeatureCache, image_features
from recollect.index import Index
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder


def fusion_of(**settings):
    torch.manual_seed(0)
    fusion = FusionModule(FusionSettings(16, **settings), "model-a")
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return fusion


@pytest.mark.parametrize(
    ("search", "read"), [("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni"), ("uni", "both")]
)
def test_embeddings_fuse_the_neighbors_found_by_sorting_the_index(built, pictures, encoder, search, read):
    fusion = fusion_of(search=search, read=read)
    enhanced = RetrievalEnhancedEncoder(encoder, built, fusion, k=4)
    assert isinstance(enhanced, Encoder)
    queries = [pictures(60)[number].image for number in range(50, 55)]
    everything = pictures(40)
    memory = {
        "image": encoder.embed_images([everything[row].image for row in range(40)]),
        "text": encoder.embed_texts([everything[row].texts[0] for row in range(40)]),
    }
    for modality, own, embedded in (
        ("image", encoder.embed_images(queries), enhanced.embed_images(queries)),
        ("text", encoder.embed_texts(["one", "two"]), enhanced.embed_texts(["one", "two"])),
    ):
        order = (own.double() @ memory[fusion.settings.searched(modality)].double().T).argsort(dim=1, descending=True)[
            :, :4
        ]
        tokens = torch.cat([own[:, None], *(memory[taken][order] for taken in fusion.settings.taken(modality))], dim=1)
        with torch.no_grad():
            torch.testing.assert_close(embedded, fusion(modality, tokens), atol=1e-5, rtol=1e-5)
        assert embedded.dtype == torch.float32
        torch.testing.assert_close(embedded.norm(dim=1), torch.ones(len(embedded)))


def test_a_mode_does_not_change_the_other_modality(built, pictures, encoder):
    images, texts = [pictures(60)[50].image], ["a text"]
    for mode, refined in (("image", {"image"}), ("text", {"text"}), ("both", {"image", "text"})):
        enhanced = RetrievalEnhancedEncoder(encoder, built, fusion_of(), mode, k=3)
        same = {
            "image": torch.equal(enhanced.embed_images(images), encoder.embed_images(images)),
            "text": torch.equal(enhanced.embed_texts(texts), encoder.embed_texts(texts)),
        }
        assert same == {modality: modality not in refined for modality in ("image", "text")}


def test_added_rows_are_used_at_once_and_cached_features_recomputed(built, pictures, encoder, tmp_path):
    enhanced = RetrievalEnhancedEncoder(encoder, built, fusion_of(), k=3)
    queries, cache = pictures(5, name="queries"), FeatureCache(tmp_path / "cache")
    before = image_features(enhanced, queries, cache)
    np.testing.assert_array_equal(image_features(enhanced, queries, cache).images, before.images)
    built.add(pictures(20, name="new", shift=100))
    after = image_features(enhanced, queries, cache)
    assert not np.allclose(after.images, before.images)
    np.testing.assert_allclose(after.images, enhanced.embed_images([queries[row].image for row in range(5)]))


def test_the_fingerprint_changes_with_everything_that_affects_embeddings(built, encoder):
    def fingerprint(mode="both", k=3, where=None, **settings):
        return RetrievalEnhancedEncoder(encoder, built, fusion_of(**settings), mode, k, where).fingerprint

    prints = [
        fingerprint(),
        fingerprint(mode="image"),
        fingerprint(k=4),
        fingerprint(where="number < 9"),
        fingerprint(read="uni"),
    ]
    assert len(set(prints)) == 5
    assert fingerprint() == prints[0]
    built.remove(where="number = 3")
    assert fingerprint() != prints[0]


@pytest.mark.parametrize("modalities", ["image", "text", "both"])
def test_a_trained_fusion_is_used_as_it_was_trained(built, encoder, modalities):
    fusion = fusion_of(modalities=modalities)
    fusion.trained["k"] = 4
    enhanced = RetrievalEnhancedEncoder(encoder, built, fusion)
    assert (enhanced.mode, enhanced.k) == (modalities, 4)
    assert enhanced.fingerprint == RetrievalEnhancedEncoder(encoder, built, fusion, modalities, 4).fingerprint


def test_a_filter_limits_the_neighbors(built, encoder):
    enhanced = RetrievalEnhancedEncoder(encoder, built, fusion_of(), k=4, where="number in (3, 5)")
    read = enhanced.read("text", encoder.embed_texts(["a", "b"]))
    vectors = {row.tobytes() for row in built.vectors(built.ids_where("number in (3, 5)"))}
    assert read.shape == (2, 4, 16)
    assert not read[:, 2:].any()  # empty slots
    assert {row.tobytes() for rows in read[:, :2] for row in rows} == vectors


def test_fusions_without_learned_weights(built, pictures, encoder):
    image = [pictures(60)[50].image]
    own = encoder.embed_images(image)
    mean = RetrievalEnhancedEncoder(encoder, built, FusionModule(FusionSettings(16, "mean")), k=3)
    tokens = torch.cat([own[:, None], torch.from_numpy(mean.read("image", own))], dim=1)
    torch.testing.assert_close(mean.embed_images(image), torch.nn.functional.normalize(tokens.mean(1), dim=1))
    plain = RetrievalEnhancedEncoder(encoder, built, FusionModule(FusionSettings(16, "mlp")), k=3)
    torch.testing.assert_close(plain.embed_images(image), own)


def test_mismatched_parts_are_rejected(built, encoder, other_encoder, tmp_path):
    fusion = fusion_of()
    with pytest.raises(UserError, match="model-b"):
        RetrievalEnhancedEncoder(other_encoder, built, fusion)
    other = FusionModule(FusionSettings(16), "model-b")
    with pytest.raises(UserError, match=r"trained on embeddings of another model \(model-b\)"):
        RetrievalEnhancedEncoder(encoder, built, other)
    with pytest.raises(UserError, match="the fusion is 8 wide, the model 16"):
        RetrievalEnhancedEncoder(encoder, built, FusionModule(FusionSettings(8), "model-a"))
    with pytest.raises(UserError, match="k = 50"):
        RetrievalEnhancedEncoder(encoder, built, fusion, k=50)
    with pytest.raises(UserError, match=r"mode both: the fusion refines no texts. Choose mode image"):
        RetrievalEnhancedEncoder(encoder, built, fusion_of(modalities="image"), "both")
    empty = Index.create(tmp_path / "empty", width=16, model="model-a")
    with pytest.raises(UserError, match="empty"):
        RetrievalEnhancedEncoder(encoder, empty, fusion)


def test_an_index_with_a_different_width_or_prefix_is_rejected(encoder, tmp_path):
    other = Index.create(tmp_path / "narrow", width=8, model=encoder.fingerprint)
    with pytest.raises(UserError, match="narrow"):
        RetrievalEnhancedEncoder(encoder, other, fusion_of())
    other = Index.create(tmp_path / "captions", width=16, model=encoder.fingerprint, prefix="caption")
    with pytest.raises(UserError, match="prefix"):
        RetrievalEnhancedEncoder(encoder, other, fusion_of())
