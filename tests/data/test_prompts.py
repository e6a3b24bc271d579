from recollect.data.prompts import GENERAL_TEMPLATES, SIMPLE_TEMPLATES, fill


def test_there_are_eighty_different_templates_each_with_one_place_for_the_name():
    assert len(set(GENERAL_TEMPLATES)) == 80
    assert all(template.count("{}") == 1 for template in GENERAL_TEMPLATES)


def test_the_templates_are_those_of_clip_in_their_order():
    # The notebook "Prompt Engineering for ImageNet" of openai/CLIP; these places fix the order.
    known = {0: "a bad photo of a {}.", 4: "a low resolution photo of the {}.", 10: "the embroidered {}.",
             35: "a {} in a video game.", 39: "a photo of a {}.", 44: "a origami {}.", 59: "itap of the {}.",
             76: "itap of my {}.", 79: "a tattoo of the {}."}  # fmt: skip
    assert {place: GENERAL_TEMPLATES[place] for place in known} == known
    assert set(SIMPLE_TEMPLATES) <= set(GENERAL_TEMPLATES)


def test_braces_in_a_name_are_left_alone():
    assert fill("a {}.", "set {0} of {x}") == "a set {0} of {x}."
