"""Every store keeps exactly the rows that the filter's own reading of a row keeps."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.errors import UserError
from recollect.memory import Memory
from recollect.memory.filters import parse_filter, unknown_names

VALUES = [0, 3, -2, 2.5, "3", "x", "it's", 'say "x"', "", "ü%_", True, False, None, [1], {"a": 1}]
VALUES += ["a\nb", "a\\nb", "\t", "\\", "\x01\x02", "\\u0001", "\x7f\x1b[0m", '\\"']


@pytest.fixture(scope="module", params=["lance", "milvus"])
def varied(request, tmp_path_factory):
    """Rows whose metadata holds values of every type, or none."""
    folder = tmp_path_factory.mktemp("varied")
    from recollect.memory import Pairs

    address = str(folder / "memory") if request.param == "lance" else f"milvus://{folder}/lite.db/pairs"
    generator = np.random.default_rng(0)
    count = 60
    vectors = generator.normal(size=(count, 4))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    # Milvus Lite, unlike Milvus, takes true for 1 and false for 0.
    values = [value for value in VALUES if request.param == "lance" or value not in (0, False, True)]
    metadata = [
        {key: values[generator.integers(len(values))] for key in ("a", "b c", "d") if generator.random() < 0.8}
        for _ in range(count)
    ]
    captions = [str(VALUES[4 + row % 6]) for row in range(count)]
    memory = Memory.create(address, width=4, model="m")
    memory.add(Pairs([f"r{row}" for row in range(count)], vectors, vectors, captions, "m", metadata=metadata))
    rows = [{**metadata[row], "id": f"r{row}", "caption": captions[row], "source": ""} for row in range(count)]
    return memory, rows


def literal(value):
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else json.dumps(value)


def compared(name, sign, value):
    return f"{name} {sign} {literal(value)}"


texts = st.sampled_from([value for value in VALUES if isinstance(value, str)])
numbers = st.sampled_from([value for value in VALUES if isinstance(value, int | float) and not isinstance(value, bool)])
keys = st.sampled_from(["a", '"b c"', "d", "absent"])
ordered = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
comparisons = st.one_of(
    st.builds(compared, keys, ordered, numbers | texts),
    st.builds(compared, st.sampled_from(["caption", "id"]), ordered, texts),
    st.builds(compared, keys, st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(
        lambda key, word, values: f"{key} {word} ({', '.join(map(literal, values))})",
        keys, st.sampled_from(["in", "not in"]), st.lists(numbers | texts | st.booleans(), min_size=1, max_size=3),
    ),
    st.builds(
        lambda name, word, value: f"{name} {word} '{value}'",
        st.sampled_from(["a", "caption"]), st.sampled_from(["like", "not like"]),
        st.sampled_from(["%", "x", "_", "%x%", "it%", "%\"", "ü%", "_x", "", "a_b", "%\n%", "\t", "%\x02", "%\x1b%"]),
    ),
)  # fmt: skip
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("{} or {}".format, inner, inner),
        inner.map("not ({})".format),
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(where=filters)
def test_a_store_keeps_what_the_filter_keeps(varied, where):
    memory, rows = varied
    parsed = parse_filter(where)
    expected = {row["id"] for row in rows if parsed.matches(row)}
    assert set(memory.backend.ids_where(parsed)) == expected


@given(where=filters, row=st.integers(0, 59))
def test_a_filter_and_its_negation_never_both_hold(varied, where, row):
    assert not (parse_filter(where).matches(varied[1][row]) and parse_filter(f"not ({where})").matches(varied[1][row]))


@pytest.mark.parametrize(
    ("sign", "holds"),
    [("=", "equal"), ("!=", "less more"), ("<", "less"), ("<=", "less equal"), (">", "more"), (">=", "more equal")],
)
@pytest.mark.parametrize("values", [(4, 5, 6), ("a", "b", "c")])
def test_not_holds_wherever_a_value_is_there_and_the_comparison_does_not(sign, holds, values):
    """Said here without any code of the filters."""
    middle = repr(values[1])
    for name, value in zip(("less", "equal", "more"), values, strict=True):
        assert parse_filter(f"key {sign} {middle}").matches({"key": value}) == (name in holds.split())
        assert parse_filter(f"not key {sign} {middle}").matches({"key": value}) == (name not in holds.split())
        assert parse_filter(f"not (key {sign} {middle} and key = {middle})").matches({"key": value}) == (
            not (name in holds.split() and name == "equal")
        )


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("", "a name should stand at its end"),
        ("year", "one of = != < <= > >= in like should stand at its end"),
        ("year = ", "a 'text', a number, true or false should stand at its end"),
        ("year = 2000 2001", "'and' or 'or' should stand at '2001'"),
        ("year == = 2", "a 'text', a number, true or false should stand at '= 2'"),
        ("(year = 2", r"a '\)' is missing at its end"),
        ("year in 2", r"'in' needs a list such as \('a', 'b'\) at '2'"),
        ("year in (2", r"a '\)' is missing at its end"),
        ("year not = 2", "one of = != < <= > >= in like should stand at '= 2'"),
        ("caption like 3", "'like' needs a text with %"),
        (r"caption like 'a\%'", "without a backslash"),
        ("caption = 'open", "this cannot be read at ''open'"),
        ("a = 1; drop table", "this cannot be read at '; drop table'"),
        ("caption = 3", "caption is a text, and compared with 3"),
        ("good < true", "true and false have no order"),
    ],
)
def test_a_malformed_filter_is_one_line_that_says_where(where, why):
    with pytest.raises(UserError, match=why) as caught:
        parse_filter(where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("shap = 'a'", ": no column 'shap'; there are id, caption, source, shape, year"),
        ("not (sorce = 'a' and yaer in (1, 2)) or id = 'b'", ": no column 'sorce' or 'yaer'; there are id, "),
        ("shape = 'none' and year > 3000 and source = 'b'", ""),
    ],
)
def test_a_name_that_no_row_has_is_said_with_those_that_there_are(where, said):
    found = unknown_names(where, ["year", "shape", "id"])
    assert found.startswith(said) if said else found == ""


def test_a_malformed_filter_reaches_no_store(varied):
    memory, _ = varied
    for act in (lambda: memory.search(np.eye(4, dtype=np.float32), 1, where="a ="), lambda: memory.delete(where="a =")):
        with pytest.raises(UserError, match=r"Write e.g. source = 'emoji'"):
            act()
    assert len(memory) == 60


def test_texts_with_quotes_cannot_leave_their_quotes(varied):
    memory, _ = varied
    assert memory.backend.ids_where(parse_filter("caption = 'x'' or 1 = 1 --'")) == []
    assert memory.backend.ids_where(parse_filter("a = 'x\" or 1 == 1'")) == []
