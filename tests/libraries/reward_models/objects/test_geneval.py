"""The rules of GenEval on detections that are written down, in each of its modes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from mmgrpo.data.prompts import load_prompts
from mmgrpo.rewards import scorer
from mmgrpo.toy import scenes
from mmgrpo.types import Image, Prompt, Text
from reward_models.objects import geneval as module
from reward_models.objects.geneval import Detected, correct, geneval, geneval_lite, graded_score, objects, relations
from reward_models.objects.scenes import detect
from reward_models.rules.scenes import scene_all
from tests import ROOT


def seen(*names: str, colour: str = "", at: int = 0, step: int = 20) -> list[Detected]:
    """Objects of 10 x 10 in a row."""
    return [Detected(name, (at + step * i, 0, at + step * i + 10, 10), 0.95, colour) for i, name in enumerate(names)]


def clause(name: str, count: int = 1, **more) -> dict:
    return {"class": name, "count": count, **more}


def modes(include, found, exclude=()) -> tuple[float, float, float]:
    """Official, strict and of Flow-GRPO."""
    named = objects(found, 0.3)
    return (
        correct(include, exclude, named),
        correct(include, exclude, named, exact=True),
        graded_score(include, exclude, named),
    )


@pytest.mark.parametrize(
    ("number", "values"),
    [(0, (0, 0, 0.0)), (1, (0, 0, 0.5)), (2, (1, 1, 1.0)), (3, (1, 0, 0.5)), (6, (1, 0, -1.0))],
)
def test_more_objects_than_requested_are_right_officially_and_wrong_strictly(number, values):
    assert modes([clause("cup", 2)], seen(*["cup"] * number)) == values


def test_exclude_forbids_a_number_and_is_ignored_by_flow_grpo():
    found = seen("cup", "cup", "cup")
    assert modes([clause("cup", 2)], found, [clause("cup", 3)]) == (0, 0, 0.5)
    assert modes([clause("cup", 2)], found, [clause("cup", 4)]) == (1, 0, 0.5)


def test_colours_are_those_of_the_surest_objects():
    red, blue = seen("cup", colour="red")[0], seen("cup", colour="blue")[0]
    sure = Detected("cup", red.box, 0.99, "red")
    assert modes([clause("cup", color="red")], [red]) == (1, 1, 1.0)
    assert modes([clause("cup", color="red")], [blue]) == (0, 0, 0.5)  # the number is right
    assert modes([clause("cup", color="red")], [blue, sure]) == (1, 0, 0.0)  # flow_grpo: 1 - 1 / 1 = 0, and 0
    assert modes([clause("cup", 2, color="red")], [red, blue]) == (0, 0, 0.75)  # 1 and 1 - 1 / 2
    with pytest.raises(ValueError, match="'red'.*'cup'"):
        modes([clause("cup", color="red")], seen("cup"))


LEFT = [clause("dog"), clause("cup", position=["left of", 0])]


def test_a_position_needs_all_pairs():
    cup, dog = seen("cup"), seen("dog", at=60)
    assert modes(LEFT, cup + dog) == (1, 1, 1.0)
    assert modes(LEFT, seen("cup", at=60) + seen("dog")) == (0, 0, 0.75)  # 1, 1 and both 0 and 1
    assert modes(LEFT, cup) == (0, 0, pytest.approx(1 / 3))  # 0; 1 and 0
    assert modes(LEFT, dog) == (0, 0, pytest.approx(1 / 3))  # 1; 0 and 0
    two = [clause("dog"), clause("cup", 2, position=["left of", 0])]
    between = Detected("dog", (30, 0, 40, 10), 0.95)  # cups at 0 and at 60
    assert modes(two, [*seen("cup", "cup", step=60), between]) == (0, 0, 0.75)
    # Officially the surest dog counts, strictly there is one too many.
    surest = [*cup, *dog, Detected("dog", (-60, 0, -50, 10), 0.5)]
    assert modes(LEFT, surest) == (1, 0, pytest.approx(1 / 3))  # 0; 1 and 0, since the dogs do not hold


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        ((30, 0), {"right of"}),
        ((-30, 0), {"left of"}),
        ((0, 30), {"below"}),
        ((0, -30), {"above"}),
        ((30, -30), {"right of", "above"}),  # (30 - 2) / 42.4 = 0.66 in both
        ((6, 0), {"right of"}),  # (6 - 2) / 6 = 0.67
        ((30, 12), {"right of"}),  # (12 - 2) / 32.3 = 0.31
        ((2, 2), set()),  # not more than a tenth of both sizes
        ((0, 0), set()),
        ((4, 0), set()),  # (4 - 2) / 4 is a half, and not more
    ],
)
def test_directions_are_shares_of_the_offset(offset, found):
    x, y = offset
    other = Detected("a", (0, 0, 10, 10))
    assert relations(Detected("b", (x, y, x + 10, y + 10)), other) == found


def test_points_are_in_relation_from_a_thousandth_on():
    """Objects without a size have the whole offset."""

    def point(x: float) -> Detected:
        return Detected("a", (x, 0, x, 0))

    found = {x: relations(point(x), point(0)) for x in (0.0005, 0.001, 0.0015)}
    assert found == {0.0005: set(), 0.001: {"right of"}, 0.0015: {"right of"}}


def test_every_clause_counts_and_one_that_does_not_hold_has_no_place():
    both = [clause("dog"), clause("cup")]
    assert modes(both, seen("cup")) == (0, 0, 0.5) and modes(both, seen("dog")) == (0, 0, 0.5)
    red_left = [clause("dog"), clause("cup", color="red", position=["left of", 0])]
    dog = seen("dog", at=60)
    assert modes(red_left, seen("cup", colour="red") + dog) == (1, 1, 1.0)
    assert modes(red_left, seen("cup", colour="blue") + dog) == (0, 0, pytest.approx(2 / 3))  # 1; 1 and 0, no place
    chain = [*red_left, clause("cow", position=["right of", 1])]
    cow = seen("cow", at=90)
    assert modes(chain, seen("cup", colour="red") + dog + cow) == (1, 1, 1.0)
    assert modes(chain, seen("cup", colour="blue") + dog + cow) == (0, 0, pytest.approx(3 / 5))  # 1; 1 and 0; 1 and 0


def test_what_a_detector_leaves_out_is_sure_and_of_no_colour():
    assert Detected("cup", (0, 0, 1, 1)) == Detected("cup", (0, 0, 1, 1), score=1.0, colour="", mask=None)


def test_only_the_16_surest_detections_above_the_threshold_count():
    many = [Detected("cup", (i, 0, i + 1, 1), i / 100) for i in range(100)]
    [cups] = objects(many, 0.9).values()
    assert [cup.box[0] for cup in cups] == list(range(99, 90, -1))
    assert len(objects(many, 0.3)["cup"]) == 16 and objects(many, 0.3)["cup"][0].score == 0.99


@pytest.fixture
def cups(monkeypatch) -> None:
    """A detector that sees two cups, of which one is doubtful."""
    both = [Detected("cup", (0, 0, 1, 1), 0.95), Detected("cup", (5, 0, 6, 1), 0.6)]
    monkeypatch.setattr(
        module, "_detector", lambda name: lambda images: [both for image in images if image.pixels.dim()]
    )


def test_counting_has_a_threshold_of_its_own(cups):
    rows = [Prompt("two cups", "0", meta={"include": [clause("cup", 2)], "tag": tag}) for tag in ("counting", "single")]
    pictures = [Image(torch.zeros(3, 8, 8))] * 2
    assert geneval(rows, pictures, "any:thing") == [0.0, 1.0]
    assert geneval(rows, pictures, "any:thing", counting_threshold=0.5) == [1.0, 1.0]
    assert geneval(rows, pictures, "any:thing", threshold=0.6) == [0.0, 0.0]


def test_the_modes_are_chosen_by_name(cups):
    row, picture = Prompt("a cup", "0", meta={"include": [clause("cup")]}), [Image(torch.zeros(3, 8, 8))]
    values = {mode: geneval([row], picture, "any:thing", mode=mode) for mode in ("official", "strict", "flow_grpo")}
    assert values == {"official": [1.0], "strict": [0.0], "flow_grpo": [0.0]}  # 1 - |1 - 2| / 1


def test_a_broken_picture_is_nan_and_the_others_keep_their_rows(cups):
    row = Prompt("two cups", "0", meta={"include": [clause("cup", 2)]})
    broken = Image(torch.full((3, 8, 8), math.nan))
    first, second = geneval([row] * 2, [broken, Image(torch.zeros(3, 1, 1))], "any:thing")
    assert math.isnan(first) and second == 1.0


def test_a_detector_is_not_asked_where_there_is_no_picture_to_show():
    row, broken = Prompt("a cup", "0", meta={"include": [clause("cup")]}), Image(torch.full((3, 8, 8), math.nan))
    assert math.isnan(geneval([row], [broken], "no_such_module:detect")[0])


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, r"meta\.include.*\[\]"),
        ({"include": "cup"}, r"meta\.include\[0\].*'c'"),
        ({"include": 3}, r"meta\.include.*3"),
        ({"include": [clause("a")], "exclude": 3}, r"meta\.exclude.*3"),
        ({"include": [{"count": 1}]}, r"meta\.include\[0\].*1\}"),
        ({"include": [clause("cup", 0)]}, r"meta\.include\[0\].*count"),
        ({"include": [clause("cup", True)]}, "count.*True"),
        ({"include": [clause("cup", position=["left of", 0])]}, r"position.*\['left of', 0\]"),
        ({"include": [clause("a"), clause("b", position=["near", 0])]}, r"include\[1\].*position.*\['near', 0\]"),
        *(
            ({"include": [clause("a"), clause("b"), clause("c", position=wrong)]}, r"include\[2\]: position: got ")
            for wrong in (3, ["left of"], ["left of", 0, 1], ["left of", -1], ["left of", True], ["left of", 2])
        ),
        ({"include": [clause("a"), clause(3)]}, r"meta\.include\[1\].*3.*count"),
        ({"include": [clause("a")], "exclude": [clause("a", 1.5)]}, r"meta\.exclude\[0\].*count.*1\.5"),
    ],
)
def test_a_malformed_clause_is_named(meta, message, cups):
    with pytest.raises(ValueError, match=f"geneval.*'7'.*{message}"):
        geneval([Prompt("a cup", "7", meta=meta)], [Image(torch.zeros(3, 8, 8))], "any:thing")


def test_an_answer_that_is_no_scene_has_no_clauses_and_clauses_come_before_a_scene(cups):
    picture = [Image(torch.zeros(3, 8, 8))]
    with pytest.raises(ValueError, match=r"meta\.include.*\[\]"):
        geneval([Prompt("a cup", "7", answer={"cups": 2})], picture, "any:thing")
    scene = scenes.parse("a red circle").to_json()
    own = Prompt("two cups", "0", answer=scene, meta={"include": [clause("cup", 2, position=None)]})
    assert geneval([own], picture, "any:thing") == [1.0]


def test_one_threshold_is_that_of_all_prompts(cups):
    row = Prompt("two cups", "0", meta={"include": [clause("cup", 2)], "tag": "counting"})
    picture = [Image(torch.zeros(3, 8, 8))]
    assert [geneval_lite([row], picture, "any:thing", threshold=least)[0] for least in (0.5, 0.6)] == [1.0, 0.0]


def test_wrong_modes_outputs_and_detectors_are_errors(cups):
    row = Prompt("two cups", "0", meta={"include": [clause("cup", 2)]})
    with pytest.raises(ValueError, match="geneval.*mode.*'lax'"):
        geneval([row], [Image(torch.zeros(3, 8, 8))], "any:thing", mode="lax")
    with pytest.raises(TypeError, match="geneval.*Text"):
        geneval([row], [Text("two cups")], "any:thing")
    with pytest.raises(ValueError, match="rewards.*geneval"):
        scorer("geneval")


# ---- end to end, on pictures of the embedded scenes

HELDOUT = load_prompts(ROOT / "pipelines/visual/assets/scenes/heldout.jsonl")[::2]


def drawn(prompts) -> list[Image]:
    """The pictures that prompts ask for."""
    return [scenes.image(scenes.Scene.from_json(prompt.answer), seed) for seed, prompt in enumerate(prompts)]


def test_the_rules_hold_on_pictures_of_their_prompts_and_not_on_those_of_others():
    reward = scorer("geneval_lite").fn
    kinds = {scenes.Scene.from_json(prompt.answer).kind for prompt in HELDOUT}
    assert kinds == {"one", "many", "mixed", "relation"}
    assert reward(HELDOUT, drawn(HELDOUT)) == [1.0] * len(HELDOUT)
    others = [*HELDOUT[7:], *HELDOUT[:7]]
    wrong = reward(others, drawn(HELDOUT))
    assert sum(wrong) < 0.05 * len(wrong)
    assert [value for value, exact in zip(wrong, scene_all(others, drawn(HELDOUT)), strict=True) if exact > value] == []


def test_clauses_of_scenes_and_of_geneval_are_read_alike():
    scene = scenes.parse("a red circle left of a blue square")
    picture = scenes.image(scene, 0)
    right = [clause("square", color="blue"), clause("circle", color="red", position=["left of", 0])]
    wrong = [clause("square", color="red"), clause("circle", color="red", position=["left of", 0])]
    rows = [scenes.prompt(scene), *(Prompt("a", "a", meta={"include": include}) for include in (right, wrong))]
    assert geneval_lite(rows, [picture] * 3) == [1.0, 1.0, 0.0]
    assert geneval_lite(rows, [picture] * 3, mode="flow_grpo") == pytest.approx([1.0, 1.0, 3 / 5])
    # of the last: the square is there, but not red; the circle is there and red, but next to no red square


def test_the_place_of_a_scene_counts_and_boxes_are_those_of_its_objects():
    picture = scenes.image(scenes.parse("a red circle above a blue square"), 0)
    rows = [
        scenes.prompt(scenes.parse(f"a red circle {place} a blue square")) for place in ("above", "below", "left of")
    ]
    assert geneval_lite(rows, [picture] * 3) == [1.0, 0.0, 0.0]
    pixels = torch.ones(3, 32, 32)
    pixels[:, 6:14, 18:26] = torch.tensor(scenes.COLOURS["red"])[:, None, None] / 255
    [found] = detect([Image(pixels)])
    assert [(one.name, one.box, one.colour) for one in found] == [
        (name, (18.0, 6.0, 26.0, 14.0), "red") for name in ("square", "red square")
    ]


def test_what_has_no_clear_shape_or_colour_is_nothing(monkeypatch):
    from reward_models.objects import scenes as detector

    clear = SimpleNamespace(shape="circle", colour="red", x=8.0, y=6.0, size=(4, 2), agreement=1.5)
    vague = [SimpleNamespace(**{**vars(clear), name: ""}) for name in ("shape", "colour")]
    monkeypatch.setattr(detector, "see", lambda pixels: [vague[0], clear, vague[1]])
    [found] = detect([Image(torch.zeros(3, 64, 64))])
    assert found == [Detected(name, (6.0, 5.0, 10.0, 7.0), 1.0, "red") for name in ("circle", "red circle")]


def test_a_picture_that_the_detector_of_scenes_cannot_read_is_an_error():
    row = scenes.prompt(scenes.parse("a red circle"))
    for size in ((32, 64), (48, 48), (1, 1)):
        with pytest.raises(ValueError, match=f"{size[1]}.*{size[0]}"):
            geneval_lite([row], [Image(torch.zeros(3, *size))])


def test_a_direction_is_told_by_the_offset_less_a_tenth_of_both_sizes():
    """Boxes of 10 x 10: the offset of the centres is reduced by (10 + 10) / 10 = 2 in x and in y."""

    def at(x: float, y: float = 0.0, side: float = 10.0) -> Detected:
        return Detected("a", (50 + x, 70 + y, 50 + x + side, 70 + y + side))

    here = at(0)
    assert relations(at(2), here) == set() == relations(at(0, -2), here)
    assert relations(at(5), here) == {"right of"} and relations(at(-5), here) == {"left of"}
    assert relations(at(0, 5), here) == {"below"} and relations(at(0, -5), here) == {"above"}
    assert relations(at(10, 10), here) == {"right of", "below"}  # 8 / hypot(10, 10) = 0.57
    assert relations(at(10, 5), here) == {"right of"}  # 8 and 3 / hypot(10, 5): 0.72 and 0.27
    # Of sides 10 and 30 the offset is reduced by 4: 6 / hypot(10, 10) = 0.42
    assert relations(here, at(0, 0, 30)) == set() == relations(at(0, 0, 30), here)


def test_only_things_of_the_colour_are_counted():
    red, blue = (Detected("cube", (0, 0, 1, 1), colour=colour) for colour in ("red", "blue"))
    assert [module._of_colour([red, blue, red], colour) for colour in ("red", "blue", "green")] == [2, 1, 0]
