"""Which weights the tuning methods change, and which they leave alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from recollect.classifiers.tuning import ClipLora, LabeledPictures, TunedClassifier, TwoStageTuning, class_loss
from recollect.core.errors import UserError
from recollect.models import build_model


def weights(encoder):
    return {name: tensor.clone() for name, tensor in encoder.state_dict().items()}


def zero_shot(encoder, shots, template="a photo of a {}."):
    images = encoder.embed_images(list(shots.pictures))
    return (encoder.scale * images @ encoder.embed_texts([template.format(name) for name in shots.names]).T).numpy()


def training_loss(tuned, shots):
    scores = torch.from_numpy(tuned.scores(shots.pictures))
    return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(shots.labels)))


class TestClipLora:
    def test_without_steps_it_equals_zero_shot(self, encoder, shots):
        tuned = ClipLora(effort=0.0).fit(encoder, shots)
        np.testing.assert_array_equal(tuned.scores(shots.pictures), zero_shot(encoder, shots))

    def test_it_changes_only_queries_keys_and_values_of_both_towers(self, encoder, shots):
        before = weights(encoder)
        tuned = ClipLora(steps_per_shot=2, batch=6, learning_rate=1e-2).fit(encoder, shots)
        changed = {name for name, each in tuned.encoder.state_dict().items() if not torch.equal(each, before[name])}
        expected = {name for name in before if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))}
        assert changed == expected
        assert len(expected) == 12  # 2 towers x 2 blocks x 3
        assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
        change = tuned.encoder.state_dict()["model.text_model.encoder.layers.0.self_attn.q_proj.weight"]
        change = change - before["model.text_model.encoder.layers.0.self_attn.q_proj.weight"]
        assert torch.linalg.matrix_rank(change, atol=1e-6) <= 2

    def test_it_fits_its_examples_and_can_be_saved(self, make_encoder, shots, tmp_path):
        from recollect.models import load_model

        encoder = make_encoder("clip")
        method = ClipLora(steps_per_shot=8, batch=6, learning_rate=3e-2, dropout=0.0)
        tuned = method.fit(encoder, shots)
        assert training_loss(tuned, shots) < training_loss(replace(method, effort=0.0).fit(encoder, shots), shots)
        opened = load_model(tuned.encoder.save(tmp_path / "tuned"), "cpu")
        torch.testing.assert_close(opened.embed_images(list(shots.pictures)), tuned.embed_images(shots.pictures))
        assert tuned.embed_names(["cat"]).shape == (1, encoder.width)


class TestTwoStageTuning:
    def test_the_first_stage_trains_only_norms(self, encoder, shots):
        before = weights(encoder)
        method = TwoStageTuning(steps_per_shot=2, first_share=1.0, batch=6, learning_rate=1e-2)
        tuned = method.fit(encoder, shots)
        changed = {name for name, each in tuned.encoder.state_dict().items() if not torch.equal(each, before[name])}
        assert changed
        assert all("norm" in name or "layrnorm" in name for name in changed)
        assert {name.split(".")[1] for name in changed} == {"text_model", "vision_model"}
        texts = tuned.encoder.embed_texts([f"a photo of a {name}." for name in shots.names])
        torch.testing.assert_close(tuned.texts, texts)  # stage 2 has no steps here

    def test_the_second_stage_trains_only_the_classes(self, encoder, shots):
        before = weights(encoder)
        tuned = TwoStageTuning(steps_per_shot=20, first_share=0.0, batch=6, learning_rate=1e-2).fit(encoder, shots)
        assert all(torch.equal(tensor, before[name]) for name, tensor in tuned.encoder.state_dict().items())
        assert training_loss(tuned, shots) < training_loss(TwoStageTuning(effort=0.0).fit(encoder, shots), shots)


def test_a_tuned_classifier_can_be_saved_and_opened(make_encoder, shots, tmp_path):
    tuned = TwoStageTuning(steps_per_shot=2, batch=6).fit(make_encoder("clip"), shots)
    scores = tuned.scores(shots.pictures)
    opened = TunedClassifier.open(tuned.save(tmp_path / "saved"), "cpu")
    np.testing.assert_allclose(opened.scores(shots.pictures), scores, rtol=1e-5, atol=1e-5)
    assert opened.predict(shots.pictures) == tuned.predict(shots.pictures)
    with pytest.raises(UserError):
        tuned.save(tmp_path / "saved")
    (tmp_path / "saved" / "tuned.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError):
        TunedClassifier.open(tmp_path / "saved", "cpu")


def test_labels_may_be_integers_of_any_width(shots):
    short = LabeledPictures(shots.pictures, shots.labels.astype(np.int32), shots.names)
    assert short.labels.dtype == np.int64
    assert (short.labels == shots.labels).all()


def test_invalid_pictures_and_unsupported_models_are_rejected(shots):
    with pytest.raises(UserError):
        LabeledPictures([np.zeros(4), np.ones(4)], np.arange(2), ("a", "b"))
    with pytest.raises(ValueError):
        LabeledPictures(shots.pictures, np.zeros(6, dtype=int), shots.names)
    with pytest.raises(ValueError):
        LabeledPictures(shots.pictures, shots.labels[:5], shots.names)
    with pytest.raises(UserError):
        ClipLora().fit(build_model("vector-linear", texts=["a red square"]), shots)


def test_the_class_loss_is_the_cross_entropy_of_scaled_cosines():
    images, texts = torch.randn(5, 4).double(), torch.randn(3, 4).double()
    labels = torch.tensor([0, 1, 2, 1, 0])
    unit = [each.numpy() / np.linalg.norm(each.numpy(), axis=1, keepdims=True) for each in (images, texts)]
    expected = -log_softmax(7.0 * unit[0] @ unit[1].T, axis=1)[np.arange(5), labels].mean()
    assert float(class_loss(images, texts, labels, 7.0)) == pytest.approx(expected)
