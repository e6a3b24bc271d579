import numpy as np
import pytest

from evaluation.conftest import VectorEncoder, vector_source
from recollect.classifiers.texts import prompt_ensemble, prompts_and_ensemble
from recollect.core.errors import UserError
from recollect.evaluation.features import FeatureCache, image_features


def test_features_are_the_embeddings_in_the_order_of_the_source(source, encoder):
    features = image_features(encoder, source, block=7)
    expected = encoder.embed_images([source[index].image for index in range(len(source))]).numpy()
    np.testing.assert_array_equal(features.images, expected)
    assert features.labels.tolist() == [source[index].label for index in range(len(source))]
    assert features.ids == tuple(f"row-{index}" for index in range(len(source)))
    assert set(features.domains) == {"odd", "even"}


def test_cached_features_are_the_same_and_cost_no_embedding(source, encoder, tmp_path):
    cache = FeatureCache(tmp_path)
    first = image_features(encoder, source, cache)
    calls = encoder.calls
    second = image_features(encoder, source, cache)
    assert encoder.calls == calls
    np.testing.assert_array_equal(first.images, second.images)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert (first.ids, first.domains) == (second.ids, second.domains)


def test_the_cache_is_never_used_for_another_model_or_other_data(source, encoder, tmp_path):
    cache = FeatureCache(tmp_path)
    image_features(encoder, source, cache)
    assert cache.load(encoder, source) is not None
    assert cache.load(VectorEncoder("other weights"), source) is None
    assert cache.load(encoder, vector_source(noise=0.31)) is None


def test_a_damaged_cache_file_is_rebuilt(source, encoder, tmp_path):
    cache = FeatureCache(tmp_path)
    whole = image_features(encoder, source, cache)
    path = cache.path(encoder, source)
    intact = path.read_bytes()
    for damaged in (intact[:200], intact[:-1] + bytes([intact[-1] ^ 1]), intact.replace(b"row-3", b"row-7", 1)):
        path.write_bytes(damaged)
        assert cache.load(encoder, source) is None
        again = image_features(encoder, source, cache)
        np.testing.assert_array_equal(again.images, whole.images)
        assert again.ids == whole.ids
        assert cache.load(encoder, source) is not None


def test_an_empty_source_and_nan_embeddings_are_errors(encoder):
    with pytest.raises(UserError):
        image_features(encoder, vector_source(size=0))
    with pytest.raises(UserError):
        image_features(encoder, vector_source(noise=float("nan")))


def test_the_ensemble_is_the_normalized_mean_of_normalized_embeddings(encoder):
    prompts = [["a 0", "the 0", "one 0"], ["a 1"]]
    ensembles = prompt_ensemble(encoder, prompts)
    for row, texts in zip(ensembles, prompts, strict=True):
        mean = np.mean([encoder.embed_texts([text])[0].numpy() for text in texts], axis=0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)


def test_single_prompts_are_returned_with_their_ensemble(encoder):
    prompts = [["a 0", "the 0", "one 0"], ["a 1", "the 1"]]
    each, texts = prompts_and_ensemble(encoder, prompts)
    np.testing.assert_array_equal(texts, prompt_ensemble(encoder, prompts))
    assert each.shape == (2, 2, 8)  # as many as the class with the fewest prompts
    np.testing.assert_allclose(each[1], encoder.embed_texts(["a 1", "the 1"]), atol=1e-6)
