"""What families answer to a run, with numbers that can be checked in the head, on the smallest models there are."""

from __future__ import annotations

import json

import pytest
import torch

from mmgrpo.config.conflicts import refuse_conflicts
from mmgrpo.config.settings import config_class
from mmgrpo.evaluation import Shown
from mmgrpo.family import families, family
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.policies.walks import Completion
from mmgrpo.toy import scenes
from mmgrpo.types import Media, Prompt, Request, Text, Turn
from pipelines.factory import recognize
from pipelines.options import ModelOptions
from pipelines.pretrained import architecture, locate
from pipelines.training import PLAIN, Training
from tests.tiny import maker, tiny_checkpoint


def visual(**sampling):
    """Three prompts of four samples and five steps with the default of Stable Diffusion 3."""
    config = config_class(family("sd3").sections)(seed=0)
    config.data.prompts_per_step, config.data.group_size = 3, 4
    for name, value in {"steps": 5, **sampling}.items():
        setattr(config.sampling, name, value)
    return config


# What a round costs


def test_a_round_of_transitions_costs_its_steps_and_trains_all_but_the_last():
    config = visual()
    made = family("sd3").arithmetic(config)
    assert made.lines == (
        "3 prompts x 4 samples = 12 samples, 5 denoising steps",
        "60 network evaluations to sample, 48 decisions trained with 48 evaluations forward and backward",
    )
    assert made.groups == 3
    config.optim.epochs, config.model.guidance = 2, 4.5  # guidance doubles evaluations, not decisions
    assert family("sd3").arithmetic(config).totals == {
        "samples": 12,
        "evaluations to sample": 120,
        "evaluations to train": 192,
    }


def test_a_round_of_drawn_noise_levels_costs_its_samples_and_its_old_errors():
    made = family("sd3").arithmetic(visual(policy="matching", draws=2))
    # 12 samples of 5 steps, and 12 x 2 drawn levels before and in training
    assert made.lines[1] == (
        "84 network evaluations to sample, 24 decisions trained with 24 evaluations forward and backward"
    )
    assert made.totals == {"samples": 12, "evaluations to sample": 84, "evaluations to train": 24} and made.groups == 3


def test_several_branch_points_are_groups_of_their_own():
    made = family("sd3").arithmetic(visual(plan="one_step_branch(draw='all')"))
    # the first half of 5 steps has 2 of them; a plan evaluates the steps before once, and the rest for each of 4 rows
    assert made.lines[0] == "3 prompts x 4 samples x 2 branch points = 24 samples, 5 denoising steps"
    assert made.groups == 6
    # each plan trains its one step in all 4 rows of a group
    assert "24 decisions trained with 6 evaluations forward and backward" in made.lines[1]
    assert made.totals["evaluations to sample"] == 3 * ((1 + 4 * 4) + (2 + 3 * 4))
    assert made.totals["evaluations to train"] == 3 * 2


def test_the_cost_is_that_of_the_first_round():
    """Its window begins at step 0, which a group has in common; the next one's would begin at step 1."""
    made = family("sd3").arithmetic(visual(plan="sliding_window(size=2, interval=1)"))
    assert made.totals["evaluations to sample"] == 3 * (1 + 4 * 4)


def test_a_policy_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="sampling.policy.*other"):
        visual(policy="other").check()
    assert family("sd3").decisions(visual()) == "gaussian"
    assert family("sd3").decisions(visual(policy="matching")) == "matching"


def test_a_round_of_completions_costs_its_tokens():
    config = config_class(family("qwen_vl").sections)()
    config.data.prompts_per_step, config.data.group_size, config.optim.epochs = 3, 500, 2
    config.sampling.max_tokens = 4
    made = family("qwen_vl").arithmetic(config)
    assert made.lines == (
        "3 prompts x 500 samples = 1,500 completions of at most 4 tokens, 6,000 in all",
        "6,000 tokens sampled, 3,000 completions forward and backward",
    )
    assert made.totals == {"completions": 1500, "tokens sampled at most": 6000, "completions to train": 3000}
    config.sampling.contrast = "shuffled_frames"
    assert family("qwen_vl").arithmetic(config).lines[1] == (
        "and those of changed prompts (shuffled_frames), scored but not trained on"
    )
    assert made.groups == 3 and family("qwen_vl").decisions(config) == "tokens"


# What is loaded


SAMPLING = {
    "max_tokens": 5,
    "temperature": 0.7,
    "evaluation_temperature": 0.3,
    "truncated": "mask",
    "share_prefix": False,
    "logits_chunk_size": 77,
    "features_kept": 3,
    "top_p": 0.9,
    "contrast": "shuffled_frames",
    "dtype": "bfloat16",
}


@pytest.mark.filterwarnings("ignore:top_p")
def test_settings_reach_the_policy_of_a_language_model(tmp_path):

    config = config_class(family("causal_lm").sections)(seed=0)
    config.model.path, config.data.reference_in_group = maker("causal_lm")(tmp_path), True
    plain = family("causal_lm").policy(config, "cpu")
    for name, value in SAMPLING.items():
        setattr(config.sampling, name, value)
    made = family("causal_lm").policy(config, "cpu")
    renamed = {"dtype": "sampling_dtype", "truncated": "train_truncated"}
    for name, value in SAMPLING.items():
        found, other = (getattr(one, renamed.get(name, name), "missing") for one in (made, plain))
        if name not in ("contrast", "features_kept"):
            assert found == {"mask": False}.get(value, value), name
        assert found != other or found == "missing", name
    assert made.feature_cache.capacity == 3 and plain.feature_cache.capacity == 0
    assert made.walk.used == {"data.reference_in_group": True, "sampling.contrast": "shuffled_frames"}
    assert (
        plain.walk.used == {"data.reference_in_group": True}
        and made.settings.config is config
        and type(made.walk) is Completion
    )
    assert "divergence" not in plain.fields
    config.algorithm.credit = "divergence_weight"
    assert "divergence" in family("causal_lm").policy(config, "cpu").fields


def test_a_policy_of_options_records_them_and_its_family(tmp_path):
    from pipelines import text

    path = maker("causal_lm")(tmp_path)
    settings = text.policy(path, seed=5, max_tokens=3, lora_rank=2, device="cpu").settings
    model, sampling = settings.config.model, settings.config.sampling
    assert (settings.family.name, model.family, model.path) == ("causal_lm", "causal_lm", path)
    assert (settings.config.seed, sampling.max_tokens, model.lora_rank) == (5, 3, 2)
    assert text.policy(path, device="cpu").settings.config.seed == 0
    with pytest.raises(ValueError, match="causal_lm.*max_token.*max_tokens"):
        text.policy(path, max_token=3)


@pytest.mark.parametrize("name", [name for name, one in families().items() if one.modality != "speech"])
def test_a_family_is_evaluated_and_rewarded_as_its_kind(name):
    from pipelines.visual.options import VisualEval
    from pipelines.vlm.options import VlmEval

    sections = family(name).sections
    asked = (VlmEval, ("task", "format(weight=0.5)"))
    kinds = {"visual": (VisualEval, ("scene_all",)), "vlm": asked, "text": asked}
    assert (sections.eval, sections.rewards) == kinds[family(name).modality]


def test_completions_are_written_with_their_prompts(tmp_path):
    shown = Shown([Prompt("how many?", "a")], [Text("three")], [{"r": 1.0}], [{}])
    family("qwen_vl").write_samples(tmp_path / "after", shown)
    [row] = (tmp_path / "after.jsonl").read_text().splitlines()
    assert "how many?" in row and "three" in row


@pytest.fixture(scope="module")
def words():
    from pipelines.visual import sd3

    return str(tiny_checkpoint(sd3.tiny_words, scenes.vocabulary()))


@pytest.mark.parametrize(("policy", "kind"), [("transitions", DenoisingPolicy), ("matching", FlowMatchingPolicy)])
def test_settings_reach_the_policy(policy, kind, words):
    config = visual(policy=policy, draws=3, evaluation_steps=7, forward_batch_size=5, grid="shifted_linspace(shift=2)")
    config.model.path, config.model.height, config.model.width = words, 16, 16
    config.model.forget_encoders = True
    prompts = [Prompt("a red circle", "0")]
    config.model.gradient_checkpointing = True
    made = family("sd3").policy(config, "cpu", prompts)
    assert made.model.training.gradient_checkpointing
    assert not family("sd3").policy(config, "cpu", prompts, training=False).model.training.gradient_checkpointing
    assert isinstance(made, kind) and made.grid.steps == 5 and made.evaluation_grid.steps == 7
    # 2 t / (1 + t) at t = 4/5
    assert made.grid.levels[1].item() == pytest.approx(1.6 / 1.8) and made.solver.forward_batch_size == 5
    assert made.settings.config is config
    [picture] = made.sample(Request(prompts, [0], 1, seed=0))
    assert picture.pixels.shape[-2:] == (16, 16)
    with pytest.raises(Exception, match="forgot|encod"):
        made.sample(Request([Prompt("two blue squares", "1")], [0], 1, seed=0))


def test_a_policy_of_noise_levels_keeps_its_reference_and_saves_its_network(words, tmp_path):
    config = visual(policy="matching")
    config.model.path, config.model.height, config.model.width = words, 16, 16
    made = family("sd3").policy(config, "cpu")
    made.keep_reference()
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter += 1
    with made.model.reference() as before:
        assert all(torch.equal(a + 1, b) for a, b in zip(before.parameters(), made.network.parameters(), strict=True))
    made.save(tmp_path / "model")
    again = family("sd3").policy(config, "cpu", weights=str(tmp_path / "model"))
    assert all(torch.equal(a, b) for a, b in zip(again.network.parameters(), made.network.parameters(), strict=True))


# How a checkpoint is recognized


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"model_type": "whisper"}, "whisper"),
        ({"_class_name": "FluxPipeline", "model_type": "whisper"}, "flux"),
        ({"family": "duration"}, "duration"),
    ],
)
def test_a_folder_is_of_the_family_that_reads_what_it_declares(content, name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert recognize(families(), str(tmp_path)) == name


def test_a_folder_that_declares_nothing_or_something_else_is_named(tmp_path):
    assert architecture(str(tmp_path)) == ""
    with pytest.raises(ValueError, match="architecture"):
        recognize(families(), str(tmp_path))
    with pytest.raises(ValueError, match="''.*architecture"):
        recognize(families(), "")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="'bert'"):
        recognize(families(), str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')  # counts first
    assert recognize(families(), str(tmp_path)) == "flux"


def test_a_hub_id_is_asked_for_its_files_in_turn(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    asked = []

    def download(path, name, local_files_only):
        assert not local_files_only
        asked.append((path, name))
        if name == "model_index.json":
            raise EntryNotFoundError("no such file")
        (tmp_path / name).write_text('{"model_type": "qwen2_5_vl"}')
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: None)
    assert architecture("owner/model") == "qwen2_5_vl"
    assert asked == [("owner/model", "model_index.json"), ("owner/model", "config.json")]


def test_a_folder_needs_one_of_its_marks_and_a_hub_id_has_one_slash(tmp_path):
    assert locate("owner/name.v1", "a/b") == "owner/name.v1"
    with pytest.raises(FileNotFoundError, match="config.json"):
        locate(tmp_path, "a/b")
    (tmp_path / "b.json").touch()
    with pytest.raises(FileNotFoundError, match="b.json.*a.json.*c.json"):
        locate(tmp_path, "a/b", "a.json", "c.json")
    assert locate(tmp_path, "a/b", "a.json", "b.json") == str(tmp_path)


def test_the_precision_of_storage_is_full_where_the_network_itself_trains():
    assert Training(dtype="bfloat16").storage_dtype == torch.float32
    assert Training(dtype="bfloat16", lora_rank=4).storage_dtype == torch.bfloat16
    assert Training(dtype="bfloat16").compute_dtype == torch.bfloat16
    assert not PLAIN.adapters and Training(lora_rank=1).adapters


def test_options_of_a_run_are_those_of_its_training():
    options = ModelOptions(lora_rank=2, lora_alpha=3.0, lora_targets=["a", "b"], dtype="float16", allow_pickle=True)
    made = Training.of(options, seed=5, device="cuda", weights="saved")
    assert made == Training(2, 3.0, ("a", "b"), 5, "saved", False, "float16", "cuda", allow_pickle=True)
    for checkpointing, training in ((True, True), (True, False), (False, True), (False, False)):
        asked = Training.of(ModelOptions(gradient_checkpointing=checkpointing), seed=0, device="cpu", training=training)
        assert asked == Training(gradient_checkpointing=checkpointing and training)
    assert Training.of(ModelOptions(gradient_checkpointing=True), seed=0, device="cpu").gradient_checkpointing


def test_the_fewest_pixels_may_be_the_most_and_no_more():
    config = config_class(family("qwen_vl").sections)()
    config.model.path = "a/b"
    for fewest, most in ((784, 784), (784, 0), (0, 784), (784, 1568)):
        config.model.min_pixels, config.model.max_pixels = fewest, most
        refuse_conflicts({"model": config.model})
    config.model.min_pixels, config.model.max_pixels = 785, 784
    with pytest.raises(ValueError, match="model.min_pixels.*785.*model.max_pixels=784"):
        refuse_conflicts({"model": config.model})


# Texts and media of a command line


class Plain:
    """A tokenizer that finds nothing."""

    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": []}


def test_a_model_of_words_needs_words_and_no_media():
    from mmgrpo.data.chat import prompt_ids

    with pytest.raises(ValueError, match="'a'"):
        prompt_ids(Plain(), None, Prompt("x", "a"))
    with pytest.raises(ValueError, match="image"):
        prompt_ids(Plain(), None, Prompt("", "a", turns=(Turn("user", (Media("image", "a.png"),)),)))
