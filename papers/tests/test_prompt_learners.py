"""Prompt learners: trained and frozen parameters, reproducibility, and losses by the published formulas."""
# ruff: noqa: F401, F811

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from classifiers.conftest import encoder, make_encoder, shots
from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning import ClipLora, descend, frozen_copy, random_crops
from recollect.core.errors import UserError
from recollect_papers.peers.prompts import PromptedClassifier, Prompts, prompt_tokens, prompted, token_width
from recollect_papers.peers.tuning_methods import (
    BoostingPrompts,
    CascadedPrompts,
    CoOp,
    MaPLe,
    PromptSRC,
    PromptTask,
    Tokens,
    match_loss,
)

QUICK = {"epochs": 1, "batch": 3}
LEARNERS = [CoOp(tokens=3, **QUICK), MaPLe(**QUICK),
            PromptSRC(templates=("a photo of a {}.", "a bad photo of a {}."), **QUICK)]  # fmt: skip


def weights(encoder):
    return {name: tensor.clone() for name, tensor in encoder.state_dict().items()}


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_prompts_are_trained_and_towers_are_not(encoder, shots, learner):
    before = weights(encoder)
    tuned, start = learner.fit(encoder, shots), replace(learner, effort=0.0).fit(encoder, shots)
    for model in (encoder, tuned.encoder):
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    moved = [
        not torch.equal(one, other)
        for mine, theirs in zip(tuned.prompts, start.prompts, strict=True)
        for one, other in zip((*mine.text, *mine.image), (*theirs.text, *theirs.image), strict=True)
    ]
    assert moved
    assert all(moved)
    assert tuned.scores(shots.pictures).shape == (6, 3)


def test_the_seed_determines_crops_order_and_tokens(encoder, shots):
    rows = torch.arange(len(shots.pictures))
    one, same, other = (random_crops(encoder, shots.pictures, seed=seed)(rows) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    orders = []
    for seed in (0, 0, 1):
        seen, weight = [], torch.nn.Parameter(torch.zeros(()))

        def loss(rows, seen=seen, weight=weight):
            seen += rows.tolist()
            return weight * 1.0

        descend("test", torch.optim.SGD([weight], lr=0.0), loss, 20, Schedule(2, 4), seed)
        orders.append(seen)
    assert orders[0] == orders[1] != orders[2]
    tokens = [PromptSRC(seed=seed).start(encoder) for seed in (0, 1)]
    assert not torch.equal(tokens[0].image[0], tokens[1].image[0])
    maps = [each.weight for each in MaPLe().start(encoder).maps]
    sites = {name: torch.nn.Linear(6, 6) for name in ("one", "two")}
    downs = list(ClipLora().start(sites)[0].values())
    for layers in (tokens[0].image, tokens[0].text, maps, downs):  # blocks, maps and layers differ
        assert len({layer.detach().numpy().tobytes() for layer in layers}) == len(layers) > 1


def test_the_same_seed_gives_the_same_prompts_which_can_be_saved(encoder, shots, tmp_path):
    tuned, again = (MaPLe(**QUICK).fit(encoder, shots) for _ in range(2))
    scores = tuned.scores(shots.pictures)
    np.testing.assert_array_equal(again.scores(shots.pictures), scores)
    opened = PromptedClassifier.open(tuned.save(tmp_path / "kept"), "cpu")
    np.testing.assert_allclose(opened.scores(shots.pictures), scores, rtol=1e-5, atol=1e-5)
    assert opened.predict(shots.pictures) == tuned.predict(shots.pictures)
    torch.testing.assert_close(opened.embed_names(shots.names), tuned.texts)
    with pytest.raises(UserError):
        tuned.save(tmp_path / "kept")
    (tmp_path / "kept" / "tuned.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError):
        PromptedClassifier.open(tmp_path / "kept", "cpu")


@torch.no_grad()
def test_large_batches_are_embedded_with_the_prompts(make_encoder):
    """The image tower is compiled for large batches, which must not capture the tokens of a trial batch."""
    encoder = frozen_copy(make_encoder("clip"))
    generator = torch.Generator().manual_seed(0)
    prompts = Prompts((), (torch.randn(3, token_width(encoder, "image"), generator=generator),))
    classifier = PromptedClassifier(encoder, ("a", "b"), torch.eye(2), 1.0, "{}.", (prompts,))
    pixels = torch.randn(70, 3, 32, 32, generator=generator)
    with prompted(encoder, [prompts]):
        expected = torch.nn.functional.normalize(encoder.encode_images(pixels), dim=1)
    torch.testing.assert_close(classifier.embed_images(pixels), expected, rtol=1e-4, atol=1e-5)


def test_maples_image_tokens_are_maps_of_the_text_tokens(encoder, shots):
    learner = MaPLe().start(frozen_copy(encoder))
    prompts = learner.prompts()
    assert len(prompts.text) == len(prompts.image) == 2  # as many as the towers have blocks
    for text, image, each in zip(prompts.text, prompts.image, learner.maps, strict=True):
        torch.testing.assert_close(image, text @ each.weight.T + each.bias)
    words = encoder.tokenizer("a photo", add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    embedding = encoder.model.text_model.embeddings.token_embedding.weight
    torch.testing.assert_close(prompts.text[0], embedding[words][:2])
    prompts.image[1].sum().backward()
    assert learner.text[1].grad.abs().sum() > 0


def prompt_task(method, encoder, shots):
    frozen = frozen_copy(encoder)
    tokens = prompt_tokens(frozen, [method.text.replace("{}", name) for name in shots.names], method.tokens)
    references = method.references(frozen, shots.names)
    return PromptTask(frozen, learned_scale(encoder), tokens, (), references)


def embeddings(task, learner, pixels):
    """Return unit embeddings in float64: prompted pictures and texts, and pictures by the frozen model."""
    with torch.no_grad(), prompted(task.encoder, [learner.prompts()]):
        raw = [task.encoder.encode_images(pixels), task.encoder.encode_texts(task.tokens)]
    with torch.no_grad():
        raw.append(task.encoder.encode_images(pixels))
    return [each.double().numpy() / np.linalg.norm(each.double().numpy(), axis=1, keepdims=True) for each in raw]


def test_promptsrcs_loss_is_the_published_one(encoder, shots):
    method = PromptSRC(templates=("a photo of a {}.", "a drawing of the {}.", "{}"))
    task = prompt_task(method, encoder, shots)
    learner, pixels = method.start(task.encoder), torch.randn(4, 3, 32, 32)
    labels = torch.tensor([0, 1, 2, 0])
    images, texts, frozen = embeddings(task, learner, pixels)
    means = np.array([
        encoder.embed_texts([t.format(name) for t in method.templates]).double().numpy().mean(axis=0)
        for name in shots.names
    ])  # fmt: skip
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found, before = (
        log_softmax(task.scale * each, axis=1) for each in (images @ texts.T, frozen @ means.T)
    )  # fmt: skip
    expected = -found[np.arange(4), labels].mean() + 25 * np.abs(texts - means).mean()
    expected += 10 * np.abs(images - frozen).mean() + (np.exp(before) * (before - found)).sum() / 12
    assert float(method.loss(task, learner, pixels, labels).detach()) == pytest.approx(expected, rel=1e-4)


def test_the_final_prompts_are_the_gaussian_mean_over_epochs():
    def learned(method):
        learner, seen = Tokens([torch.zeros(1, 2)]), []

        def loss(rows):
            seen.append(float(learner.text[0][0, 0].detach()))
            return learner.text[0].sum()

        method.learn(learner, loss, 8)
        return float(learner.text[0][0, 0].detach()), seen

    quick = {"epochs": 3, "batch": 4, "learning_rate": 0.1}
    last, seen = learned(MaPLe(**quick))
    mean, same = learned(PromptSRC(peak=2.0, spread=1.0, **quick))
    assert seen == same
    assert len(seen) == 6  # two steps an epoch: only the second counts
    weights = np.exp(-0.5 * (np.array([1, 2, 3]) - 2.0) ** 2)
    assert mean == pytest.approx((weights * [seen[2], seen[4], last]).sum() / weights.sum())


class TestCasPL:
    def test_boosting_reduces_the_divergence_from_the_teacher_without_labels(self, make_encoder, shots):
        encoder, teacher = make_encoder("clip"), make_encoder("clip", seed=5)
        method = BoostingPrompts(tokens=3, epochs=12, batch=6, learning_rate=0.05, flip=False)
        prompts = [replace(method, effort=effort).teach(encoder, teacher, shots.pictures, shots.names)
                   for effort in (0.0, 1.0)]  # fmt: skip
        pixels = random_crops(encoder, shots.pictures, seed=7)(torch.arange(6))
        frozen = frozen_copy(encoder)
        tokens = prompt_tokens(frozen, [f"a photo of a {name}." for name in shots.names], 3)
        task = PromptTask(frozen, learned_scale(encoder), tokens)
        texts = teacher.embed_texts([f"a photo of a {name}." for name in shots.names])
        targets = torch.log_softmax(learned_scale(teacher) * teacher.embed_images(pixels) @ texts.T, dim=1)
        with torch.no_grad():
            before, after = (float(match_loss(Tokens(*(each.text, each.image)), task, pixels, targets))
                             for each in prompts)  # fmt: skip
        assert 0 < after < before

    def test_the_cascade_does_not_change_the_first_phase(self, make_encoder, shots):
        encoder, teacher = make_encoder("clip"), make_encoder("clip", seed=5)
        boosting = BoostingPrompts(tokens=2, epochs=1)
        method = CascadedPrompts(boosting, MaPLe(**QUICK), teacher)
        tuned = method.fit(encoder, shots)
        first = boosting.teach(encoder, teacher, shots.pictures, shots.names)
        assert len(tuned.prompts) == 2
        assert all(map(torch.equal, tuned.prompts[0].text, first.text))
        assert tuned.scores(shots.pictures).shape == (6, 3)
