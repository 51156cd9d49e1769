"""What a run starts from is the same exactly if its fingerprint is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from mmgrpo.runtime.fingerprint import SAMPLED, of_network, of_prompts, of_settings
from mmgrpo.types import Image, Media, Prompt, Turn

PIXELS = torch.zeros(3, 2, 2)
PROMPT = Prompt("one", "1", answer=[1, 2], task="numeric", meta={"size": (3, 4)}, turns=(Turn("user", ("words",)),))


def shown(medium: Media) -> Prompt:
    return replace(PROMPT, turns=(Turn("user", (medium,)),))


@pytest.mark.parametrize(
    "changed",
    [
        replace(PROMPT, text="two"),
        replace(PROMPT, answer=[1, 3]),
        replace(PROMPT, task="exact"),
        replace(PROMPT, meta={"size": (3, 5)}),
        replace(PROMPT, turns=(Turn("assistant", ("words",)),)),
        shown(Media("image", Image(PIXELS))),
    ],
)
def test_every_part_of_a_prompt_counts(changed):
    assert of_prompts([changed]) != of_prompts([PROMPT])
    assert of_prompts([replace(changed)]) == of_prompts([changed])


def test_the_order_of_prompts_counts_and_that_of_keys_does_not():
    other = replace(PROMPT, id="2")
    assert of_prompts([PROMPT, other]) != of_prompts([other, PROMPT])
    assert of_settings({"a": 1, "b": 2}) == of_settings({"b": 2, "a": 1}) != of_settings({"a": 2, "b": 1})


def test_pictures_in_memory_count_by_type_shape_and_values():
    fingerprints = {
        of_prompts([shown(Media("image", Image(pixels)))]) for pixels in (PIXELS, PIXELS + 1, torch.zeros(3, 1, 4))
    }
    assert len(fingerprints) == 3
    assert of_prompts([shown(Media("image", Image(PIXELS.clone())))]) in fingerprints


def test_a_file_counts_by_its_name_and_size_wherever_it_lies(tmp_path):
    def fingerprint(folder: str, name: str, content: bytes) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(content)
        return of_prompts([shown(Media("image", str(tmp_path / folder / name)))])

    first = fingerprint("a", "0.png", b"12")
    assert first == fingerprint("b", "0.png", b"34")
    assert len({first, fingerprint("a", "1.png", b"12"), fingerprint("a", "0.png", b"123")}) == 3
    frames = (str(tmp_path / "a" / "0.png"), str(tmp_path / "a" / "1.png"))
    assert of_prompts([shown(Media("video", frames))]) != of_prompts([shown(Media("video", frames[:1]))])
    (tmp_path / "a" / "1.png").unlink()
    assert of_prompts([shown(Media("video", frames))]), "a missing file is an error where it is read, not here"


def test_names_shapes_values_and_buffers_of_a_network_count():
    def network(value: float = 1.0, buffer: float = 1.0, name: str = "a", shape: tuple[int, ...] = (2, 3)) -> nn.Module:
        made = nn.Module()
        made.register_parameter(name, nn.Parameter(torch.full(shape, value)))
        made.register_buffer("b", torch.tensor([buffer]))
        return made

    variants = [network(), network(2.0), network(buffer=2.0), network(name="c"), network(shape=(3, 2))]
    assert len({of_network(one) for one in variants}) == 5
    assert of_network(network()) == of_network(network())


def test_of_a_large_parameter_some_values_count_and_of_others_all():
    def changed(size: int, place: int) -> bool:
        network, other = (nn.Module() for _ in range(2))
        weight = torch.zeros(size)
        network.register_parameter("w", nn.Parameter(weight.clone()))
        weight[place] = 1.0
        other.register_parameter("w", nn.Parameter(weight))
        return of_network(network) != of_network(other)

    assert all(changed(SAMPLED, place) for place in (0, 1, SAMPLED - 1))
    assert changed(2 * SAMPLED, 0) and not changed(2 * SAMPLED, 1) and changed(2 * SAMPLED, 2)
    assert changed(SAMPLED + 1, 0) and not changed(SAMPLED + 1, 1)


def test_a_prompt_with_half_a_character_has_a_fingerprint_too():
    assert of_prompts([Prompt("\ud800")]) != of_prompts([Prompt("\ud801")])
