from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.view import svg

EVIL = "<b a='1'>&amp;\"]]>"


def parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup)


@given(st.text())
def test_any_text_comes_back_from_a_parser_but_for_what_xml_cannot_hold(words: str) -> None:
    root = parsed(svg.element("text", svg.text(f"[{words}]"), class_=words))
    expected = "".join("\ufffd" if (ord(c) < 32 and c not in "\t\n\r") or c in "\ufffe\uffff" else c for c in words)
    expected = expected.replace("\r\n", "\n").replace("\r", "\n")  # as every XML parser reads the ends of lines
    assert root.text == f"[{expected}]"
    assert root.attrib["class"].split() == expected.split()


def test_a_name_cannot_become_markup() -> None:
    root = parsed(svg.element("g", svg.text(EVIL), svg.element("title", svg.text(EVIL)), class_=EVIL))
    assert (root.text, root.attrib["class"], [child.text for child in root]) == (EVIL, EVIL, [EVIL])


def test_half_a_surrogate_pair_does_not_break_the_file() -> None:
    assert svg.text("a\ud800b\x1b[0m").encode() == "a\ufffdb\ufffd[0m".encode()


def test_attributes_keep_their_order_and_those_without_a_value_are_left_out() -> None:
    assert svg.element("rect", class_="c", x=1.0, stroke_width=2, rx=None) == '<rect class="c" x="1" stroke-width="2"/>'
    assert svg.element("g", svg.element("a"), svg.element("b")) == "<g><a/><b/></g>"


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (-0.001, "0"), (1, "1"), (1.5, "1.5"), (2.125, "2.12"), (100, "100"), (-3.999, "-4"), (1e7, "10000000")],
)
def test_numbers_have_at_most_two_decimals(value: float, written: str) -> None:
    assert svg.number(value) == written


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        svg.element("rect", x=value)


def test_paths_are_short() -> None:
    assert svg.path("M", 1, 2.5, "h", -3, "Q", 1, 2, 3, 4, "z") == "M1 2.5h-3Q1 2 3 4z"
    assert svg.polyline([(1, 2), (3.25, 4)]) == "M1 2L3.25 4"


def test_a_document_is_read_out_and_an_inline_picture_too() -> None:
    root = parsed(svg.document(EVIL, "what it shows", 30, 20.5, [svg.element("g")], width=60))
    assert [child.tag.rpartition("}")[2] for child in root] == ["title", "desc", "g"]
    assert (root[0].text, root[1].text) == (EVIL, "what it shows")
    assert (root.attrib["viewBox"], root.attrib["width"], root.get("height")) == ("0 0 30 20.5", "60", None)
    assert "<desc" not in svg.document("a", "", 1, 1, [])
    inner = parsed(svg.inline(EVIL, 30, 20, [svg.element("g")]))
    assert (inner.attrib["aria-label"], inner.attrib["role"], len(inner)) == (EVIL, "img", 1)


def test_a_palette_has_rules_for_both_schemes() -> None:
    rules = parsed(svg.colour_rules({"ink": "#000"}, {"ink": "#fff"})).text or ""
    light, _, dark = rules.partition("@media(prefers-color-scheme:dark)")
    assert light == ".ink{fill:#000}.stroke.ink{fill:none;stroke:#000}"
    assert ".stroke.ink{fill:none;stroke:#fff}" in dark
