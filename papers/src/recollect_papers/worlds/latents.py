"""The vector world: "images" are mixtures of latent factors, captions name a few of them.

For studies of the objective alone. A coarse class has a vector, and each of its fine classes has typical values of
eight attributes. A caption contains the coarse class, some attributes (a few of them wrong) and rarely the fine class;
most of an image's energy is nuisance that captions do not mention. There are more factors than dimensions, so no linear
readout is exact.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from recollect.core.seeding import derive_seed, integers, normals, numpy_generator, uniforms
from recollect.core.types import BatchRead
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect_papers.worlds.arrays import ArraySource, GeneratedSource, no_labels

SYNONYM_COUNT = 2


@dataclass(frozen=True)
class LatentWorld:
    """Settings of the world; the defaults show a clear effect of context.

    Attributes:
        seed: seed of the world: classes, mixing and typical attributes.
        coarse: number of coarse classes, in ``groups`` groups of related classes.
        named: fine classes per coarse class that captions may name.
        held_out: further fine classes per coarse class, held out from training.
        attributes: number of attributes with ``values`` values each; an instance has its class's typical value with
            probability ``purity``.
        hidden: dimensions of the fine class without words, of amplitude ``hidden_amplitude``.
        nuisance: dimensions independent of class and words, of amplitude ``nuisance_amplitude``, around an offset per
            domain; the last ``held_out_domains`` of ``domains`` are held out from training.
        width: dimensions of an image.
        noise: standard deviation of noise per dimension.
    """

    seed: int = 0
    coarse: int = 60
    groups: int = 12
    spread: float = 0.6
    named: int = 6
    held_out: int = 3
    attributes: int = 8
    values: int = 6
    purity: float = 0.6
    hidden: int = 8
    hidden_amplitude: float = 0.5
    nuisance: int = 128
    nuisance_amplitude: float = 2.0
    domains: int = 24
    held_out_domains: int = 6
    width: int = 192
    noise: float = 0.05
    says_coarse: float = 0.8
    says_attributes: int = 3
    drops_attribute: float = 0.3
    wrong_attribute: float = 0.05
    says_fine: float = 0.03
    fillers: int = 200

    @property
    def fine(self) -> int:
        """Number of fine classes; the first ``coarse * named`` are in training."""
        return self.coarse * (self.named + self.held_out)

    def parent(self, fine: np.ndarray) -> np.ndarray:
        """Return the coarse class of each fine class."""
        return fine % self.coarse

    @cached_property
    def _tables(self) -> dict[str, np.ndarray]:
        """All random constants of the world."""
        draw = numpy_generator(self.seed, "latent world")
        group = np.arange(self.coarse) % self.groups
        inputs = 12 + self.attributes * 6 + self.hidden + self.nuisance
        first = draw.normal(size=(inputs, 2 * self.width)) / np.sqrt(inputs)
        salience = np.exp(0.7 * draw.normal(size=self.attributes))
        tables = {
            "coarse": draw.normal(size=(self.groups, 12))[group] + self.spread * draw.normal(size=(self.coarse, 12)),
            "attribute": draw.normal(size=(self.attributes, self.values, 6)),
            "habit": draw.integers(self.values, size=(self.fine, self.attributes)),
            "hidden": draw.normal(size=(self.fine, self.hidden)),
            "domain": draw.normal(size=(self.domains, self.nuisance)),
            "mixing": first @ draw.normal(size=(2 * self.width, self.width)) / np.sqrt(2 * self.width),
            "salience": salience / salience.sum(),
        }
        return {name: table if table.dtype.kind == "i" else table.astype(np.float32) for name, table in tables.items()}

    def attribute_values(self, fine: np.ndarray, key: int, indices: np.ndarray) -> np.ndarray:
        """Draw the attributes of each instance (n, attributes): the class's typical value, or a random one."""
        follows = uniforms(derive_seed(key, "follows"), indices, self.attributes) < self.purity
        other = integers(uniforms(derive_seed(key, "other"), indices, self.attributes), self.values)
        return np.where(follows, self._tables["habit"][fine], other)

    def images(
        self, fine: np.ndarray, domain: np.ndarray, attributes: np.ndarray, key: int, indices: np.ndarray
    ) -> np.ndarray:
        """Generate image vectors (n, width), float32."""
        tables = self._tables
        words = tables["attribute"][np.arange(self.attributes), attributes].reshape(len(fine), -1)
        jitter = normals(derive_seed(key, "hidden"), indices, self.hidden)
        nuisance = self.nuisance_amplitude * normals(derive_seed(key, "nuisance"), indices, self.nuisance)
        factors = np.concatenate(
            [
                tables["coarse"][self.parent(fine)],
                words,
                self.hidden_amplitude * (tables["hidden"][fine] + np.float32(0.5) * jitter),
                nuisance + tables["domain"][domain],
            ],
            axis=1,
        )
        noise = self.noise * normals(derive_seed(key, "noise"), indices, self.width)
        return (factors.astype(np.float32) @ tables["mixing"] + noise).astype(np.float32)

    def captions(self, fine: np.ndarray, attributes: np.ndarray, key: int, indices: np.ndarray) -> list[str]:
        """Generate captions."""
        rows, count = len(fine), self.says_attributes
        # Mention attributes by unequal salience: those with the largest keys (Efraimidis and Spirakis' sampling).
        ranks = np.log(uniforms(derive_seed(key, "which"), indices, self.attributes)) / self._tables["salience"]
        group = np.argsort(-ranks, axis=1)[:, :count]
        value = np.take_along_axis(attributes, group, axis=1)
        draws = uniforms(derive_seed(key, "words"), indices, 4 * count + 7)
        wrong, dropped, any_value, which = (draws[:, count * part : count * (part + 1)] for part in range(4))
        value = np.where(wrong < self.wrong_attribute, integers(any_value, self.values), value)
        synonym = integers(which, SYNONYM_COUNT)
        rest = draws[:, 4 * count :]
        filler = integers(rest[:, 3:5], self.fillers)
        coarse = self.parent(fine)
        texts = []
        for row in range(rows):
            words = []
            if rest[row, 0] < self.says_coarse:
                words.append(coarse_word(int(coarse[row]), int(rest[row, 1] * SYNONYM_COUNT)))
            words += [
                attribute_word(int(group[row, number]), int(value[row, number]), int(synonym[row, number]))
                for number in range(count)
                if dropped[row, number] >= self.drops_attribute
            ]
            if rest[row, 2] < self.says_fine:
                words.append(f"name{fine[row]}")
            texts.append(" ".join([*words, *(f"filler{number}" for number in filler[row])]))
        return texts

    def vocabulary(self) -> tuple[str, ...]:
        """Return all words that captions may contain."""
        words = [coarse_word(number, which) for number in range(self.coarse) for which in range(SYNONYM_COUNT)]
        words += [
            attribute_word(group, value, which)
            for group in range(self.attributes)
            for value in range(self.values)
            for which in range(SYNONYM_COUNT)
        ]
        words += [f"name{number}" for number in range(self.coarse * self.named)]
        return tuple(words + [f"filler{number}" for number in range(self.fillers)])

    def fine_prompts(self, fine: int) -> tuple[str, ...]:
        """Return texts for a fine class: its coarse class and two most salient attributes, once per synonym."""
        salient = np.argsort(-self._tables["salience"])[:2]
        habits = self._tables["habit"][fine]
        parent = fine % self.coarse
        words = [(int(group), int(habits[group])) for group in salient]
        return tuple(
            " ".join([coarse_word(parent, which), *(attribute_word(*word, which) for word in words)])
            for which in range(SYNONYM_COUNT)
        )


def coarse_word(number: int, synonym: int) -> str:
    """Return a word for a coarse class."""
    return f"{('kind', 'sort')[synonym]}{number}"


def attribute_word(group: int, value: int, synonym: int) -> str:
    """Return a word for an attribute's value."""
    return f"{('trait', 'quality')[synonym]}{group}is{value}"


@dataclass(eq=False)
class LatentCaptions(GeneratedSource):
    """Endless stream of pairs, determined by the world and the sample's index.

    The ``seed`` of `batch` determines nuisance and noise: different seeds give different views of the same instance.
    """

    world: LatentWorld
    name: str = "latents:captions"

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self.world.captions(*self._subjects(indices)[::2], derive_seed(self.world.seed, "content"), indices)

    def _subjects(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the fine class, domain and attributes of each sample."""
        world, content = self.world, derive_seed(self.world.seed, "content")
        draws = uniforms(content, indices, 2)
        fine = integers(draws[:, 0], world.coarse * world.named)
        domain = integers(draws[:, 1], world.domains - world.held_out_domains)
        return fine, domain, world.attribute_values(fine, content, indices)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return images (n, width), captions, and empty labels."""
        world, content = self.world, derive_seed(self.world.seed, "content")
        fine, domain, attributes = self._subjects(indices)
        images = world.images(fine, domain, attributes, derive_seed(content, "view", seed), indices)
        texts = world.captions(fine, attributes, content, indices)
        return torch.from_numpy(images), texts, no_labels(len(fine))


_SHOTS, _QUERIES, _WAYS = 32, 25, 20
_SIZES = (5, 8, 12, 20, 32, 50, 80, 120)


def latent_few_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Return eight tasks over unseen fine classes, which differ between validation and test.

    Even tasks are fine-grained (children of a few coarse classes), odd tasks broad; every second pair of tasks is in an
    unseen domain.
    """
    pool, draw = _unseen(world, split), numpy_generator(world.seed, "tasks", split)
    siblings, seen, tasks = max(1, len(pool) // world.coarse), world.domains - world.held_out_domains, []
    for number in range(8):
        if number % 2 == 0:
            parents = draw.permutation(world.coarse)[: max(1, _WAYS // siblings)]
            classes = pool[np.isin(world.parent(pool), parents)][:_WAYS]
        else:
            classes = draw.permutation(pool)[:_WAYS]
        domain = int(draw.integers(seen)) if number % 4 < 2 else int(seen + draw.integers(world.held_out_domains))
        name = f"latents-{split}-{'fine' if number % 2 == 0 else 'broad'}-{number}"
        tasks.append(_task(world, name, classes, domain))
    return tasks


def sized_few_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Return two broad tasks for each number of classes in `_SIZES`, in a seen and an unseen domain (LIxP, Fig. 5)."""
    pool, draw = _unseen(world, split), numpy_generator(world.seed, "sized tasks", split)
    seen, tasks = world.domains - world.held_out_domains, []
    for ways in (size for size in _SIZES if size <= len(pool)):
        places = {"seen": draw.integers(seen), "unseen": seen + draw.integers(world.held_out_domains)}
        for place, domain in places.items():
            classes = draw.permutation(pool)[:ways]
            tasks.append(_task(world, f"latents-{split}-{ways}-{place}", classes, int(domain)))
    return tasks


def _unseen(world: LatentWorld, split: str) -> np.ndarray:
    """Return the unseen fine classes: one per coarse class for validation, the others for test."""
    held = np.arange(world.coarse * world.named, world.fine)
    first = held < world.coarse * (world.named + 1)
    return held[first] if split == "validation" else held[~first]


def _task(world: LatentWorld, name: str, classes: np.ndarray, domain: int) -> ClassificationTask:
    names, parts = tuple(f"class {label}" for label in classes), []
    for role, each in (("support", _SHOTS), ("query", _QUERIES)):
        labels = np.repeat(np.arange(len(classes)), each)
        fine, indices = classes[labels], np.arange(len(labels))
        key = derive_seed(world.seed, name, role)
        attributes = world.attribute_values(fine, key, indices)
        images = world.images(fine, np.full(len(fine), domain), attributes, key, indices)
        parts.append(ArraySource(f"{name}-{role}", images, labels, names, f"domain {domain}"))
    prompts = tuple(world.fine_prompts(int(label)) for label in classes)
    return ClassificationTask(name, parts[0], parts[1], names, (), prompts)


def latent_zero_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Return a task over the coarse classes, with pictures of all fine classes and domains."""
    name = f"latents-{split}-coarse"
    names = tuple(coarse_word(number, 0) for number in range(world.coarse))
    prompts = tuple(
        tuple(coarse_word(number, which) for which in range(SYNONYM_COUNT)) for number in range(world.coarse)
    )
    parts = []
    for role, count in (("support", _SHOTS * world.coarse), ("query", 4000)):
        key, indices = derive_seed(world.seed, name, role), np.arange(count)
        draws = uniforms(derive_seed(key, "class"), indices, 2)
        member = integers(draws[:, 0], world.named + world.held_out)
        coarse = indices % world.coarse
        fine = member * world.coarse + coarse
        attributes = world.attribute_values(fine, key, indices)
        images = world.images(fine, integers(draws[:, 1], world.domains), attributes, key, indices)
        parts.append(ArraySource(f"{name}-{role}", images, coarse, names))
    return [ClassificationTask(name, parts[0], parts[1], names, (), prompts)]
