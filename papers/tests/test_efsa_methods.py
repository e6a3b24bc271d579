"""EFSA's baselines compared with plain loops: matching captions, fine-tuning by PEFT, RLCF."""
# ruff: noqa: F401, F811

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dual_encoders import encoder as each_encoder
from dual_encoders import family, make_encoder, make_episode_batch, make_index, pictures
from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.efsa.methods import SearchContext
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.models.lora import AdapterOptions, adapter_sites, add_lora, initial_weights
from recollect_papers.efsa.fine_tuning import fine_tune, index_by
from recollect_papers.efsa.methods import MethodOptions, search_methods
from recollect_papers.efsa.options import RewardOptions, TuningOptions
from recollect_papers.efsa.rlcf import RewardSearcher, Teacher
from recollect_papers.efsa.sequential import FullEpisodes

QUERIES = ["a red snowman", "large river", "the bridge right of a tree"]
EPISODE = EpisodeOptions.paper(k=6, rank=4, scale=15.0, at_once=2)


@pytest.fixture(scope="module")
def encoder(make_encoder):
    return make_encoder("clip").double()


@pytest.fixture(scope="module")
def teacher(make_encoder):
    return make_encoder("siglip", seed=1)


def ids(result):
    return [hit.id for hit in result]


def reference_tuning(encoder, pictures, captions, options, tuning):
    """Fine-tune with PEFT's layers and torch's optimizer, and losses as double loops."""
    model = copy.deepcopy(encoder)
    add_lora(model, *initial_weights(adapter_sites(model), options.adapters), options.scale)
    learned = [each for name, each in model.named_parameters() if "lora_" in name]
    for name, each in model.named_parameters():
        each.requires_grad_("lora_" in name)
    optimizer = torch.optim.AdamW(learned, lr=options.learning_rate, weight_decay=options.weight_decay)
    rows = [row for row in range(24) if captions[row]]
    for epoch in range(tuning.epochs):
        order = numpy_generator("fine-tuning", tuning.seed, epoch).permutation(len(rows))
        for first in range(0, len(rows), tuning.batch_size):
            batch = [rows[place] for place in order[first : first + tuning.batch_size]]
            pixels = torch.stack([encoder.transform(pictures[row].image) for row in batch])
            images = F.normalize(model.encode_images(pixels.double()), dim=1)
            texts = F.normalize(model.encode_texts(model.tokenize([captions[row] for row in batch])), dim=1)
            total = 0.0
            for i in range(len(batch)):
                wrong = [j for j in range(len(batch)) if captions[batch[j]] != captions[batch[i]]]
                own = images[i] @ texts[i]
                among = torch.stack([encoder.scale * (images[i] @ texts[j]) for j in [i, *wrong]])
                total += options.contrastive * (among.logsumexp(0) - encoder.scale * own)
                total += options.hinge * sum((0.2 - own + images[i] @ texts[j]).clamp(min=0) for j in wrong)
            optimizer.zero_grad()
            (total / len(batch)).backward()
            optimizer.step()
    return model


def test_fine_tuning_equals_peft_on_the_captioned_pool(encoder, make_index, pictures):
    captions = [None if row in (3, 4) else pictures.texts(row)[0] for row in range(24)]
    captions[9] = captions[8]
    tuning = TuningOptions(epochs=2, batch_size=8, learning_rate=None, seed=5)
    before = copy.deepcopy(encoder.state_dict())
    tuned = fine_tune(encoder, make_index(encoder, captions), EPISODE, tuning, PixelCache(encoder.transform))
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    reference = reference_tuning(encoder, pictures, captions, EPISODE, tuning)
    pixels = torch.stack([encoder.transform(pictures[row].image) for row in range(24)]).double()
    with torch.no_grad():
        torch.testing.assert_close(tuned.encode_images(pixels), reference.encode_images(pixels), atol=1e-8, rtol=1e-8)
        tokens = encoder.tokenize(QUERIES)
        torch.testing.assert_close(tuned.encode_texts(tokens), reference.encode_texts(tokens), atol=1e-8, rtol=1e-8)
    assert (tuned.encode_images(pixels) - encoder.encode_images(pixels)).abs().max() > 1e-3


def test_unreadable_images_are_left_out_of_another_models_index(encoder, teacher, make_index, pictures):
    index = make_index(encoder)
    pictures.lost |= {2, 7}
    again = index_by(teacher, index, PixelCache(teacher.transform))
    assert sorted(map(int, again.ids)) == [row for row in range(24) if row not in (2, 7)]
    wanted = teacher.embed_images([pictures[3].image])
    np.testing.assert_allclose(again.vectors(["3"]), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_rewards_of_a_teacher_adapt_the_query_by_reinforce(encoder, teacher, make_index, pictures, steps):
    index = make_index(encoder)
    options = RewardOptions(sampled=5, candidates=10, steps=steps, learning_rate=1e-3)
    searcher = RewardSearcher(index, encoder, teacher, options=options)
    for query in QUERIES:
        model = copy.deepcopy(encoder).eval()
        optimizer = torch.optim.AdamW(list(model.tower_parameters("text")), lr=1e-3, weight_decay=5e-4)
        candidates = ids(index.search(query, 10))
        for _ in range(steps):
            asked = F.normalize(model.encode_texts(model.tokenize([query])), dim=1)[0]
            vectors = torch.from_numpy(index.vectors(candidates)).double()
            logits = torch.stack([encoder.scale * (vector @ asked) for vector in vectors])
            chosen = logits.argsort(descending=True)[:5].tolist()
            judged = teacher.embed_texts([query])[0]
            seen = [teacher.embed_images([pictures[int(candidates[place])].image])[0] for place in chosen]
            rewards = [max(2.5 * float(vector @ judged), 0) for vector in seen]
            mean = sum(rewards) / 5
            loss = -sum((r - mean) * logits.log_softmax(0)[place] for r, place in zip(rewards, chosen, strict=True)) / 5
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        asked = model.embed_texts([query])[0]
        cosines = (torch.from_numpy(index.vectors()) @ asked).tolist()
        (found,) = searcher.search([query], 24)
        assert ids(found) == [str(row) for row in sorted(range(24), key=lambda row: -cosines[row])]
        assert [hit.score for hit in found] == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
        plain = ids(index.search(query, 24))
        assert [plain[hit.zero_shot_rank - 1] for hit in found] == ids(found)
        assert abs(found[0].score - index.search(query, 1)[0].score) > 1e-6


def test_rewards_are_clipped_cosines_and_unreadable_images_have_none(encoder, teacher, make_index, pictures):
    judge = Teacher(teacher, make_index(encoder))
    pictures.lost.add(4)
    rewards = judge.rewards("queen", ["1", "4", "2"])
    assert rewards.isnan().tolist() == [False, True, False]
    cosine = float(teacher.embed_images([pictures[1].image])[0] @ teacher.embed_texts(["queen"])[0])
    assert float(rewards[0]) == pytest.approx(max(0, 2.5 * cosine), abs=1e-5)


def test_the_ranking_is_zero_shot_if_all_images_are_unreadable(encoder, teacher, make_index, pictures):
    index = make_index(encoder)
    pictures.lost |= set(range(24))
    searcher = RewardSearcher(index, encoder, teacher, options=RewardOptions(learning_rate=1.0))
    plain = index.search_many(QUERIES, 8)
    assert [ids(result) for result in searcher.search(QUERIES, 8)] == [ids(result) for result in plain]


def test_non_finite_losses_fall_back_to_zero_shot_with_a_note(encoder, teacher, make_index):
    index = make_index(encoder)
    broken = RewardOptions(learning_rate=1e300, weight_decay=1e300)
    searcher = RewardSearcher(index, encoder, teacher, options=broken)
    plain = index.search_many(QUERIES, 8)
    found = searcher.search(QUERIES, 8)
    assert [ids(result) for result in found] == [ids(result) for result in plain]
    assert all("zero-shot" in result.notes[0] for result in found)


METHODS = MethodOptions(EPISODE, TuningOptions(epochs=1), RewardOptions())


def prepare(name, encoder, index, teacher):
    return search_methods(METHODS, teacher)[name](SearchContext(encoder, index, EPISODE, PixelCache(encoder.transform)))


@pytest.mark.parametrize("name", list(search_methods(METHODS)))
def test_every_method_has_the_same_interface_and_leaves_the_model_unchanged(encoder, teacher, make_index, name):
    before = copy.deepcopy(encoder.state_dict())
    prepared = prepare(name, encoder, make_index(encoder), teacher)
    found = prepared.search([*QUERIES, ""], 7)
    assert [result.query for result in found] == [*QUERIES, ""]
    assert [len(result) for result in found] == [7, 7, 7, 0]
    again = prepared.search(QUERIES[1:2], 7)[0]
    assert ids(again) == ids(found[1])  # queries do not affect each other
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())


def test_full_episodes_are_plain_adamw_on_both_towers(make_encoder, make_episode_batch):
    encoder = make_encoder("clip").double()
    batch = make_episode_batch(encoder, holes=True)
    options = EpisodeOptions.paper(k=5, rank=4, learning_rate=1e-3)
    episodes = FullEpisodes(encoder, options)
    found = episodes.rerank(batch)
    other = copy.deepcopy(encoder)
    towers = [*other.tower_parameters("image"), *other.tower_parameters("text")]
    optimizer = torch.optim.AdamW(towers, lr=1e-3)
    pairs = batch.pairs[2]
    images = other.encode_images(batch.pixels[batch.images[2][pairs]])
    captions = [batch.captions[number] for number in batch.texts[2][pairs].tolist()]
    texts = other.encode_texts(other.tokenize(captions))
    cosines = F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    own = cosines.diagonal()
    contrastive = (other.scale * cosines).logsumexp(dim=1) - other.scale * own
    hinge = (0.2 - own[:, None] + cosines).clamp(min=0).sum(dim=1) - 0.2  # without its own column
    (1.7 * contrastive + 0.3 * hinge).mean().backward()
    optimizer.step()
    with torch.no_grad():
        again = F.normalize(other.encode_images(batch.pixels[batch.images[2]]), dim=1)
        asked = F.normalize(other.encode_texts(other.tokenize([batch.queries[2].words[0][0]])), dim=1)
    torch.testing.assert_close(found.scores[2], (again @ asked.T)[:, 0], atol=1e-9, rtol=0)
    assert torch.equal(episodes.rerank(batch).scores.nan_to_num(), found.scores.nan_to_num())  # weights were reset
