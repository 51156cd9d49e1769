"""The generic family: whatever the architecture, its own forward pass is what is sampled and scored."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.data.media import medium_of
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Context
from mmgrpo.types import Image, Media, Prompt, Request, Turn, Video
from pipelines import generic_lm, vlm
from pipelines.training import Training
from pipelines.vlm import image_text
from tests.building import load, rescored, token_policy_over
from tests.libraries.families.examples import CLIP, PICTURE, noise, shown
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.image_text import KINDS

LIKE = ("llava", "qwen2_vl", "llava_onevision")
"""Kinds of which another has the same code of keeping and sharing: LLaVA-NeXT, Qwen3-VL."""
UNLIKE = [pytest.param(kind, marks=pytest.mark.nightly) if kind in LIKE else kind for kind in KINDS]
TALL = Media("image", Image(noise(3, 40, 16, seed=5)))
MIXED = [
    shown(0, PICTURE, "what is it ?"),
    Prompt("yes or no ?", "1"),
    shown(2, TALL, "or", PICTURE, "?"),
    shown(3, CLIP, "where is it ?"),
]
"""One picture, none, two of other shapes, a clip of several frames; prompts of four lengths."""


@pytest.fixture(scope="module")
def folders() -> dict[str, str]:
    return {kind: tiny_checkpoint(maker("image_text"), kind) for kind in KINDS}


def policy_of(model: image_text.ImageText, **options: object) -> TokenPolicy:
    return token_policy_over(model, max_tokens=5, **options)  # type: ignore[arg-type]


def rolled(policy: TokenPolicy):
    return policy.rollout(Request(MIXED, range(len(MIXED)), 3, seed=2))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_those_of_the_models_own_forward_pass(kind, folders):
    model = load(image_text, folders[kind], max_frames=4)
    policy = policy_of(model)
    rollout = rolled(policy)
    context = model.encode(MIXED)
    decisions, sequences = rollout.decisions, rollout.steps
    suppressed = sorted(model.suppress_tokens)
    for row, prompt in enumerate(sequences.prompt.tolist()):  # type: ignore[attr-defined]
        said = sequences.ids[row][sequences.real[row]]  # type: ignore[attr-defined]
        before = context.ids[prompt][context.real[prompt]]
        with torch.no_grad():
            logits = model.own_logits(torch.cat([before, said]), context.media[prompt])[len(before) - 1 : -1]
        logits[:, suppressed] = -torch.inf
        own = logits.log_softmax(-1).gather(1, said[:, None])[:, 0]
        torch.testing.assert_close(decisions.log_probs[row, : len(said)], own, rtol=0, atol=3e-5)


@pytest.mark.parametrize("kind", UNLIKE)
def test_replaying_whole_samples_gives_what_sharing_gives(kind, folders):
    shared, replayed = (load(image_text, folders[kind], max_frames=4) for _ in range(2))
    assert shared.shared == (kind != "qwen3_5")  # which has states
    replayed.shared = False
    one, two = (rolled(policy_of(model)) for model in (shared, replayed))
    assert torch.equal(one.steps.ids, two.steps.ids)  # type: ignore[attr-defined]
    torch.testing.assert_close(one.decisions.log_probs, two.decisions.log_probs, rtol=0, atol=3e-5)
    for model, options in ((shared, {}), (replayed, {}), (shared, {"share_prefix": False})):
        torch.testing.assert_close(
            rescored(policy_of(model, **options), one), one.decisions.log_probs, rtol=0, atol=3e-5
        )


def gradient(policy: TokenPolicy, rollout, limit: int = 4) -> dict[str, torch.Tensor]:
    """Of the sum of log-probs, in parts of so many rows."""
    policy.network.zero_grad()
    for part in rollout.steps.split(rollout.decisions.loss_mask, limit):
        policy.score(rollout, part, frozenset())["log_probs"].sum().backward()
    return {name: one.grad.clone() for name, one in policy.network.named_parameters() if one.grad is not None}


def gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two gradients, relative to the largest entry."""
    assert one.keys() == other.keys() and one
    most = max(float(value.abs().max()) for value in other.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / most


@pytest.mark.parametrize("kind", UNLIKE)
def test_media_are_encoded_once_a_round(kind, folders):
    """Whatever the number of parts and networks; with the numbers of encoding them in every pass."""
    once, again = (
        load(image_text, folders[kind], Training(lora_rank=2), max_frames=4, lora_targets=["q_proj", "v_proj"])
        for _ in range(2)
    )
    again.encoded = generic_lm.Encoded(())
    passes, made = [], []
    for model in (once, again):
        policy, encoded = policy_of(model), []
        vision = next(one for name, one in model.network.named_modules() if name.endswith(("vision_tower", "visual")))
        vision.register_forward_hook(lambda *_, encoded=encoded: encoded.append(1))
        for _ in range(2 if model is once else 1):
            rollout = rolled(policy)
        for part in rollout.steps.split(rollout.decisions.loss_mask, 4):
            reference = policy.score(rollout, part, frozenset({"reference.log_probs"}))
        made.append((rollout, gradient(policy, rollout), reference["reference.log_probs"]))
        passes.append(len(encoded))
    assert passes[0] == 2 * 3 < passes[1] / 2, "three of the prompts of each of two rounds have media"
    for one, other in zip(*made, strict=True):
        if isinstance(one, dict):
            assert gap(one, other) < 1e-6
    (one, _, before), (other, _, after) = made
    torch.testing.assert_close(one.decisions.log_probs, other.decisions.log_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in ("qwen2_vl", "qwen3_vl") if kind in KINDS])
def test_a_picture_and_a_clip_in_one_prompt_are_told_apart(kind, folders):
    """Qwen3-VL encodes clips by its method for pictures."""
    once, again = (load(image_text, folders[kind], max_frames=4) for _ in range(2))
    again.encoded = generic_lm.Encoded(())
    both = [shown(0, PICTURE, "what is it ?", CLIP)]
    one, other = (policy_of(model).rollout(Request(both, [0], 3, seed=2)) for model in (once, again))
    for model in (once, again):  # a second pass, which reads what was kept
        torch.testing.assert_close(rescored(policy_of(model), one), other.decisions.log_probs, rtol=0, atol=1e-6)


def test_what_is_kept_is_of_one_precision_and_goes_with_the_prompt(folders):
    model = load(image_text, folders["llava"])

    @torch.no_grad()
    def states(context: Context) -> torch.Tensor:
        return model.hidden(model.network, context.ids, context.real, context.positions, context.media, None)[0]

    wanted, context = states(model.encode(MIXED[:1])), model.encode(MIXED[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lower = states(context)
    assert not torch.equal(lower, wanted) and torch.equal(states(context), wanted)
    gc.collect()
    assert len(model.encoded.kept) == 1
    del context
    gc.collect()
    assert not len(model.encoded.kept)


def test_what_is_kept_is_of_all_media_of_a_prompt(folders):
    """Of the same first tensor with another second one, as where images stand behind a recording, nothing is known."""
    model, asked = load(image_text, folders["llava"]), []
    first, second, third = (torch.zeros(1) for _ in range(3))
    body = model.network.base_model
    body.get_image_features = lambda: asked.append(1)  # in place of the model's own
    for media in ({"a": first, "b": second}, {"a": first, "b": second}, {"a": first, "b": third}):
        encode = body.get_image_features
        with model.encoded.during(model.network, media):
            body.get_image_features()
        body.get_image_features = encode
    assert len(asked) == 2


def test_encoders_that_train_are_asked_by_every_pass(folders):
    assert load(image_text, folders["internvl"], freeze_vision=False).encoded.names == ()
    assert load(image_text, folders["internvl"]).encoded.names == ["get_image_features"]


@pytest.mark.parametrize("kind", UNLIKE)
def test_prompts_are_shared_where_activations_are_made_again(kind, folders):
    """Behind one prompt, in one row, from fewer tokens; where attention takes no masks, each sample is read whole."""
    plain, again = (load(image_text, folders[kind], max_frames=4, gradient_checkpointing=c) for c in (False, True))
    made = rolled(policy_of(plain))
    wanted, read = gradient(policy_of(plain), made, limit=12), []
    for share in (True, False):
        tokens: list[int] = []
        hook = again.network.get_decoder().register_forward_pre_hook(
            lambda module, args, given, tokens=tokens: tokens.append(given["inputs_embeds"].shape[1]), with_kwargs=True
        )
        assert gap(gradient(policy_of(again, share_prefix=share), made, limit=12), wanted) < 1e-5
        hook.remove()
        read.append(sum(tokens))
    packed = kind not in ("gemma3", "qwen3_5")  # windows, states
    assert again.maskable_whole == packed and (read[0] < 0.6 * read[1] if packed else read[0] == read[1])


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_matter_and_only_to_their_own_prompt(kind, folders):
    model = load(image_text, folders[kind])
    other = Media("image", Image(1 - PICTURE.source.pixels))  # type: ignore[union-attr]

    def states(*media: Media) -> torch.Tensor:
        context = model.encode([shown(row, one, "what is it ?") for row, one in enumerate(media)])
        features = model.features(model.network, context)
        with torch.no_grad():
            hidden, _ = model.hidden(model.network, context.ids, context.real, context.positions, features, None)
        return hidden[:, -1]

    alone, beside = states(PICTURE, PICTURE), states(PICTURE, other)
    assert torch.equal(alone[0], beside[0])
    assert (alone[1] - beside[1]).abs().max() > 1e-3


def test_a_model_whose_keys_cannot_be_shared_is_replayed(folders, monkeypatch, capsys):
    monkeypatch.setattr(generic_lm, "spread_cache", lambda cache, rows: 1 / 0)
    model = load(image_text, folders["llava"])
    assert not model.shared
    assert "(ZeroDivisionError" in capsys.readouterr().out


def test_logits_that_are_not_those_of_the_head_are_refused(folders, monkeypatch):
    monkeypatch.setattr(image_text.ImageText, "logits", lambda self, network, hidden: -network.lm_head(hidden))
    with pytest.raises(ValueError, match="hidden states"):
        load(image_text, folders["llava"])


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("float16", 0.02), ("bfloat16", 0.1)])
def test_logits_that_differ_by_more_than_rounding_are_refused(dtype, most, folders, monkeypatch):
    own = image_text.ImageText.own_logits
    for gap in (0.8 * most, 1.3 * most):  # every logit is larger by this part
        monkeypatch.setattr(
            image_text.ImageText, "own_logits", lambda model, ids, media, gap=gap: own(model, ids, media) * (1 + gap)
        )
        if gap < most:
            assert load(image_text, folders["llava"], Training(dtype=dtype)).shared
        else:
            with pytest.raises(ValueError, match="logits differ"):
                load(image_text, folders["llava"], Training(dtype=dtype))


def test_limits_that_are_not_given_are_those_of_the_family(folders):
    assert load(image_text, folders["llava"]).limits == image_text.Limits(0, 16, 1.0, 0)
    given = {"max_pixels": 900, "max_frames": 4, "fps": 0.5, "max_prompt_tokens": 90}
    assert load(image_text, folders["llava"], **given).limits == image_text.Limits(**given)


@pytest.mark.parametrize("applied", [False, True])
def test_a_cap_of_the_logits_is_applied_where_the_model_applies_it(applied, tmp_path, monkeypatch):
    folder = maker("image_text")(tmp_path, "gemma3")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["final_logit_softcapping"] = 0.05
    file.write_text(json.dumps(config))
    if applied:  # Gemma 3 names a cap in its configuration, and does not apply it
        own = image_text.ImageText.own_logits
        capped = lambda model, ids, media: 0.05 * torch.tanh(own(model, ids, media) / 0.05)  # noqa: E731
        monkeypatch.setattr(image_text.ImageText, "own_logits", capped)
    model = load(image_text, folder)
    assert model.cap == (0.05 if applied else 0) and model.shared
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    plain = model.network.get_output_embeddings()(hidden)
    wanted = 0.05 * torch.tanh(plain / 0.05) if applied else plain
    torch.testing.assert_close(model.logits(model.network, hidden), wanted, rtol=0, atol=0)
    assert (plain.abs().max() > 0.05) and (wanted.abs().max() <= 0.05) == applied


def test_vision_is_frozen_and_adapters_stay_in_the_language_model(folders):
    for training in (Training(), Training(lora_rank=2)):
        network = load(image_text, folders["internvl"], training).network
        trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        assert trained and all("vision" not in name and "projector" not in name for name in trained)
    whole = load(image_text, folders["internvl"], freeze_vision=False).network
    assert all(parameter.requires_grad for parameter in whole.parameters())


def test_the_checkpoint_names_its_family_and_one_of_another_kind_is_refused(folders, tmp_path):
    for kind, folder in folders.items():
        given = {"family": "image_text"} if kind == "qwen3_5" else {}  # which causal_lm reads as well
        assert vlm.policy(folder, max_tokens=3, **given).settings.family.name == "image_text", kind
    with pytest.raises(ValueError, match="qwen2"):
        load(image_text, maker("causal_lm")(tmp_path))


def test_pictures_are_reduced_and_their_size_is_told(folders):
    large = shown(0, Media("image", Image(noise(3, 64, 96, seed=1))), "what is it ?")
    sizes = [load(image_text, folders["qwen2_vl"], max_pixels=n).encode([large]).seen[0][0] for n in (0, 512)]
    assert sizes == [(24, 32), (16, 24)]
    assert load(image_text, folders["gemma3"], max_pixels=1536).encode([large]).seen[0][0] == (32, 48)


def test_text_that_contains_a_mark_and_a_sound_are_refused(folders):
    model = load(image_text, folders["llava"])
    with pytest.raises(ValueError, match="'7'.*<image>"):
        model.encode([Prompt("what is <image> ?", "7")])
    with pytest.raises(ValueError, match="audio"):
        model.encode([shown(0, Media("audio", "a.wav"), "what ?")])
    with pytest.raises(ValueError, match="'0'.*max_prompt_tokens=5"):
        load(image_text, folders["llava"], max_prompt_tokens=5).encode(MIXED[:1])


def test_a_family_names_the_one_that_reads_a_checkpoint(folders, tmp_path):
    with pytest.raises(ValueError, match="internvl.*qwen_vl.*image_text"):
        vlm.policy(folders["internvl"], family="qwen_vl")
    words = maker("causal_lm")(tmp_path / "words")
    with pytest.raises(ValueError, match="qwen2.*image_text.*model.family"):
        vlm.policy(words, family="image_text")
    assert vlm.policy(maker("smolvlm")(tmp_path / "looking")).settings.family.name == "smolvlm"


def test_whole_completions_leave_no_cache_and_prompts_do(folders):
    """Rows of completions end with padding wherever they are shorter than the longest."""
    model = load(image_text, folders["llava"]) if "llava" in folders else load(image_text, next(iter(folders.values())))
    [row] = model.encode([Prompt("yes or no ?", "1")]).ids.tolist()
    ids, real = torch.tensor([row, row]), torch.ones(2, len(row), dtype=torch.bool)
    places = torch.arange(len(row)).expand(2, 1, -1)
    with torch.no_grad():
        assert model.hidden(model.network, ids, real, places, (), None)[1] is not None
        real[1, -1] = False
        assert model.hidden(model.network, ids, real, places, (), None)[1] is None


def test_positions_are_asked_with_what_the_model_wants():
    model = object.__new__(image_text.ImageText)
    own = torch.arange(6).view(3, 1, 2)
    asks = lambda input_ids, image_grid_thw: (own, None)  # noqa: E731
    model.network = SimpleNamespace(base_model=SimpleNamespace(get_rope_index=asks))  # type: ignore[assignment]
    inputs = {name: torch.zeros(1, 2) for name in ("input_ids", "image_grid_thw", "pixel_values")}
    assert torch.equal(model._positions(inputs), own[:, 0])
    del inputs["image_grid_thw"]
    assert model._positions(inputs).tolist() == [[0, 1]]


def test_padding_is_the_tokenizers_or_the_first_end(folders):
    model = load(image_text, next(iter(folders.values())))
    tokenizer = model.processor.tokenizer
    model.network.generation_config.eos_token_id = [5, 3]  # type: ignore[union-attr]
    model.__post_init__()
    assert model.pad_id == tokenizer.pad_token_id
    tokenizer.pad_token = None
    model.__post_init__()
    assert {3, 5} <= model.end_ids and model.pad_id == min(model.end_ids)


def test_what_a_processor_says_beside_its_tensors_is_left_out(folders, monkeypatch):
    model = load(image_text, folders["llava"])
    silent = model.processor

    class Talking:
        apply_chat_template = silent.apply_chat_template
        tokenizer = silent.tokenizer

        def __call__(self, **given):
            return {**silent(**given), "num_tiles": [1]}

    monkeypatch.setattr(model, "processor", Talking())
    tensors, _ = model._read(MIXED[0])
    assert "input_ids" in tensors and all(isinstance(value, torch.Tensor) for value in tensors.values())


@pytest.mark.parametrize(("height", "width", "tiles"), [(8, 8, 1), (32, 32, 1), (16, 24, 3), (33, 50, 3), (40, 16, 3)])
def test_tokens_of_internvl_are_those_of_its_tiles(height, width, tiles, folders):
    """Four tokens a tile of 16 x 16: one of a square, else two and the whole picture, whatever its neighbours have."""
    model = load(image_text, folders["internvl"])
    picture = Media("image", Image(noise(3, height, width, seed=1)))
    prompts = [shown(0, picture, "what ?"), shown(1, PICTURE, "what ?"), Prompt("what ?", "2")]
    context, mark = model.encode(prompts), model.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
    assert (context.ids == mark).sum(1)[[0, 2]].tolist() == [4 * tiles, 0]
    assert context.media[0]["pixel_values"].shape == (tiles, 3, 16, 16)


@pytest.fixture(scope="module")
def qwen3():
    return load(image_text, tiny_checkpoint(maker("image_text"), "qwen3_vl"), fps=1.0)


def of_frames(times: Sequence[float], folder: Path) -> Media:
    """A clip whose frames are files at these times."""
    files = []
    for number in range(len(times)):
        files.append(str(folder / f"{number}.png"))
        Pil.new("RGB", (16, 16), (60 * number, 0, 0)).save(files[-1])
    return medium_of({"path": files, "times": list(times)}, "video", Path())


@pytest.mark.parametrize(
    ("times", "stamps"), [([0, 1, 2, 3], ["0.5", "2.5"]), ([0, 2, 3, 9], ["1.0", "6.0"]), ([0, 1, 4], ["0.5", "4.0"])]
)
def test_a_time_stands_before_each_pair_of_frames(times, stamps, qwen3, tmp_path):
    prompt = Prompt("what is it ?", turns=(Turn("user", (of_frames(times, tmp_path), "what is it ?")),))
    context = qwen3.encode([prompt])
    text = "".join(qwen3.tokenizer.decode(context.ids[0]).split())
    expected = [f"<{stamp}seconds><|vision_start|>{'<|video_pad|>' * 4}<|vision_end|>" for stamp in stamps]
    assert f"user{''.join(expected)}whatisit?" in text and "<unk>" not in text
    assert context.media[0]["video_grid_thw"].tolist() == [[2, 4, 4]] and context.seen[0] == ((16, 16),)


def test_times_of_frames_in_memory_are_those_of_the_source(qwen3):
    clip = Media("video", Video(torch.rand(8, 3, 16, 16), 2.0))  # every second frame: 0, 1.17, 2.33, 3.5 s
    text = qwen3.tokenizer.decode(qwen3.encode([Prompt("a", turns=(Turn("user", (clip,)),))]).ids[0])
    assert "< 0 . 5 seconds >" in text and "< 3 . 0 seconds >" in text


def test_pairs_of_frames_are_read_as_the_library_reads_them(qwen3, tmp_path):
    """Ids, positions and logits: the model's own pass over what its own rule of positions makes of it."""
    picture = Media("image", Image(torch.rand(3, 16, 24)))
    parts = (picture, "what", of_frames([0, 1, 2, 3], tmp_path), "is it ?")
    context = qwen3.encode([Prompt("what is it ?", turns=(Turn("user", parts),))])
    media, ids = context.media[0], context.ids[0]
    own, _ = qwen3.network.model.get_rope_index(context.ids, **{n: v for n, v in media.items() if "pixel" not in n})
    assert torch.equal(own[:, 0], context.positions[0])
    with torch.no_grad():
        wanted = qwen3.own_logits(ids, media)
        state, _ = qwen3.hidden(qwen3.network, context.ids, context.real, context.positions, [media], None)
        torch.testing.assert_close(qwen3.logits(qwen3.network, state[0]), wanted, rtol=1e-4, atol=1e-5)
    other = {**media, "pixel_values_videos": media["pixel_values_videos"].flip(0)}
    assert (qwen3.own_logits(ids, other) - wanted).abs().max() > 1e-4, "the frames are seen"


def test_the_sizes_of_clips_are_saved_with_the_model(qwen3, tmp_path):
    qwen3.save(tmp_path, qwen3.network)
    assert load(image_text, tmp_path).clips == qwen3.clips == image_text.StampedClips(64, 65536, 4, 2, 2)


@pytest.mark.parametrize(
    ("frames", "height", "width", "size"),
    [
        (4, 16, 16, (16, 16)),
        (4, 64, 32, (32, 16)),  # 8192 pixels are four times too many: half of each side
        (2, 4, 4, (16, 16)),  # a token is 8 x 8, and 512 pixels are at least twice 16 x 16
        (4, 300, 2, (272, 8)),  # 1200 x 8 by sqrt(38400 / 2048) = 4.33, and no side below a token
    ],
)
def test_frames_of_a_clip_share_its_pixels(frames, height, width, size):
    how = image_text.StampedClips(512, 2048, 4, 2, 2)
    assert how.size(frames, height, width) == size
    assert how.size(4, 64, 32, most=128) == (16, 8)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 1], "times.*2.*4"),
        ([0, 1, 3, 2], "option 'times'"),
        ([0, 1, 2, -1], "option 'times'"),
        ([], "option 'times'"),
    ],
)
def test_times_are_one_of_each_file_and_ascend(times, message):
    with pytest.raises(ValueError, match=message):
        medium_of({"path": ["a", "b", "c", "d"], "times": times}, "video", Path())
    for key, value in (("fps", 2), ("end", 2)):
        with pytest.raises(ValueError, match=f"times.*'{key}'"):
            medium_of({"path": ["a", "b"], "times": [0, 1], key: value}, "video", Path())
    with pytest.raises(ValueError, match="'times'"):
        medium_of({"path": "a.mp4", "times": [0, 1]}, "video", Path())


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, image_text.ImageText]:
    """Models with templates, tokenizers and generation values of the published form."""
    place = tmp_path_factory.mktemp("published")
    return {kind: load(image_text, maker("image_text")(place / kind, kind, published=True)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_the_published_form_holds_its_words_once_and_one_beginning(kind, published):
    model = published[kind]
    seen = shown(0, PICTURE, "what is it ?")
    context = model.encode([seen, Prompt("yes and no ?", "1")])
    for row, words in ((0, "whatisit?"), (1, "yesandno?")):
        ids = context.ids[row][context.real[row]].tolist()
        text = "".join(model.tokenizer.decode(ids).split())
        assert text.count(words) == 1 and "type" not in text and "<unk>" not in text
        assert ids.count(model.tokenizer.bos_token_id) == (kind in ("gemma3", "llava", "llava_next"))
        assert text.count("helpful") == (kind == "qwen2_vl")
        assert model.prompt_length((seen, Prompt("yes and no ?"))[row]) == len(ids)
    assert context.prefilled == ["<think>\n" if kind in ("qwen3_vl", "qwen3_5") else ""] * 2
    own = Turn("system", ("it is red",))
    told = model.encode([Prompt("where ?", turns=(own, Turn("user", ("where ?",))))])
    text = "".join(model.tokenizer.decode(told.ids[0]).split())
    assert text.count("itisred") == 1 and "helpful" not in text


ENDS = {"gemma3": "<end_of_turn>", "llava": "</s>", "llava_next": "</s>"}


@pytest.mark.parametrize("kind", KINDS)
def test_given_answers_end_as_the_published_template_ends_a_turn(kind, published):
    model = published[kind]
    end = ENDS.get(kind, "<|im_end|>")
    assert model.tokenizer.convert_ids_to_tokens(model.spell("yes")) == ["yes", end]
    assert model.tokenizer.convert_tokens_to_ids(end) in model.end_ids
    assert model.suppress_tokens.isdisjoint(model.end_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ratio_is_one_and_samples_differ_whatever_the_generation_values(kind, published):
    policy = TokenPolicy(published[kind], max_tokens=5)
    made = policy.rollout(Request([shown(0, PICTURE, "what is it ?"), Prompt("yes and no ?", "1")], [0, 1], 4, seed=0))
    decisions = made.decisions
    dense = torch.zeros_like(decisions.log_probs)
    for part in made.steps.split(decisions.loss_mask, 7):
        dense[part.rows, part.positions] = policy.score(made, part, frozenset({"log_probs"}))["log_probs"].detach()
    own = decisions.loss_mask
    torch.testing.assert_close(dense[own], decisions.log_probs[own], rtol=0, atol=2e-5)
    assert len({output.text for output in made.outputs}) > 4


def test_gemma_refuses_two_turns_of_one_role(published):
    turns = (Turn("user", ("red",)), Turn("user", ("and blue ?",)))
    with pytest.raises(ValueError, match="'7'"):
        published["gemma3"].encode([Prompt("red", "7", turns=turns)])
