"""The options of image generators. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mmgrpo.config.conflicts import excludes, where
from mmgrpo.config.needs import REFERENCE, needs
from mmgrpo.config.ranges import ANY_TEXT, COUNT, FRACTION, LONG_TEXT, one_of, within
from mmgrpo.config.settings import Data, Eval
from pipelines.options import (
    MATCHING,
    SCALE,
    DenoisingSampling,
    DiffusionSampling,
    ModelOptions,
    TokenSampling,
)

GUIDED_ELSEWHERE = (
    needs("sampling.rollout_guidance", but=(0, 1))
    | needs("sampling.evaluation_guidance", but=(0, 1))
    | needs("sampling.reference_guidance", but=(0, 1))
)
TRUE_CFG = needs("model.true_cfg_scale", but=1) | GUIDED_ELSEWHERE


@dataclass
class MemoryOptions(ModelOptions):
    """The model, which of its weights are trained, and what limits its memory."""

    passes_by_length: ClassVar[bool] = False
    """Whether prompts of each length are a pass of their own."""

    negative_prompt: Annotated[str, LONG_TEXT, needs("model.guidance", but=1) | GUIDED_ELSEWHERE] = ""
    """Negative prompt of classifier-free guidance; a row's own negative_prompt replaces it. Empty: the default of the
    model's pipeline (for Qwen-Image a space)."""
    forget_encoders: bool = False
    """Encode all prompts at the start and free the memory of the text encoders."""
    encodings_folder: Annotated[str, ANY_TEXT] = ""
    """Folder that keeps encoded prompts between runs; empty: in memory only."""
    encodings_gb: Annotated[float, within("(0, 1e6]"), needs("model.encodings_folder")] = 4.0
    """Limit of encodings_folder in GB; least recently used entries are evicted first."""
    vae_dtype: Annotated[str, one_of("float32", "bfloat16", "float16")] = "float32"
    """Precision of the VAE; an overflow in half precision is an error that names it."""
    vae_tiling: bool = False
    """Decode in overlapping tiles with blended seams: less memory for large images and videos."""
    decode_batch_size: Annotated[int, COUNT] = 8
    """Memory limit: images or videos decoded at a time."""
    compile: Annotated[
        bool, excludes(where("distributed.shard", "full"), why="its blocks gather their weights as they are called")
    ] = False
    """Compile the blocks of the network with torch.compile: faster passes, after some minutes at the start and for
    every new batch size; numbers differ by rounding."""
    frames: ClassVar[int] = 0
    """Fixed for families of images."""
    max_sequence_length: ClassVar[int] = 0
    """Fixed where the text encoder has one length."""


@dataclass
class FlowOptions(MemoryOptions):
    """The model, and which of its weights are trained."""

    family: str = "sd3"
    path: str = "embedded:visual/scenes/base"
    """Folder or hub id, e.g. stabilityai/stable-diffusion-3.5-medium."""
    height: Annotated[int, within("[0, 16384]")] = 0
    """Height of the images in pixels; 0 takes the checkpoint's own (1024 of Stable Diffusion 3.5)."""
    width: Annotated[int, within("[0, 16384]")] = 0
    """Width of the images in pixels; 0 takes the checkpoint's own."""
    guidance: Annotated[float, SCALE] = 1.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none."""
    max_sequence_length: Annotated[int, within("[1, 65536]")] = 256
    """Maximum prompt length, in T5 tokens."""


@dataclass
class EditOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "sd3_edit"
    path: str = "embedded:visual/edits/base"
    """Folder of a small model that edits images (scripts/pretrain/edits.py)."""


@dataclass
class FluxOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "flux"
    path: str = "black-forest-labs/FLUX.1-dev"
    """Folder or hub id."""
    height: int = 512
    """Height of the images in pixels."""
    width: int = 512
    """Width of the images in pixels."""
    guidance: Annotated[float, within("[0, 1000]")] = 3.5
    """Embedded guidance scale of FLUX dev, in one evaluation; schnell takes none."""
    true_cfg_scale: Annotated[float, SCALE] = 1.0
    """Additional classifier-free guidance, in two evaluations; 1 is none."""
    negative_prompt: Annotated[str, LONG_TEXT, TRUE_CFG] = ""
    max_sequence_length: int = 512
    """Maximum prompt length, in T5 tokens; 256 for schnell."""


@dataclass
class StableDiffusionOptions(MemoryOptions):
    """The model, and which of its weights are trained."""

    family: str = "stable_diffusion"
    path: str = "CompVis/stable-diffusion-v1-4"
    height: Annotated[int, within("[0, 16384]")] = 0
    """Height of the images in pixels; 0 takes the checkpoint's own (512 of Stable Diffusion 1.x)."""
    width: Annotated[int, within("[0, 16384]")] = 0
    """Width of the images in pixels; 0 takes the checkpoint's own."""
    guidance: Annotated[float, SCALE] = 5.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none."""


@dataclass
class SdxlOptions(StableDiffusionOptions):
    """The model, and which of its weights are trained."""

    family: str = "sdxl"
    path: str = "stabilityai/stable-diffusion-xl-base-1.0"


@dataclass
class KontextOptions(FluxOptions):
    """The model, and which of its weights are trained."""

    family: str = "flux_kontext"
    path: str = "black-forest-labs/FLUX.1-Kontext-dev"
    given_size: Annotated[int, within("0", "[64, 4096]")] = 1024
    """An image to edit is resized to the preferred size of FLUX.1 Kontext that is nearest to its ratio of sides, of
    about given_size x given_size pixels; 0 keeps its own size."""


@dataclass
class KleinOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "flux2_klein"
    path: str = "black-forest-labs/FLUX.2-klein-base-4B"
    """Folder or hub id."""
    given_size: Annotated[int, within("[64, 4096]")] = 1024
    """An image to edit of more than given_size x given_size pixels is reduced to as many, in its own proportions; a
    smaller one keeps its size. A row may have several."""
    height: int = 512
    """Height of the images in pixels."""
    width: int = 512
    """Width of the images in pixels."""
    guidance: float = 4.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none, for distilled models."""
    max_sequence_length: int = 512
    """Maximum prompt length, in Qwen tokens, chat template included."""


@dataclass
class Flux2Options(KleinOptions):
    """The model, and which of its weights are trained."""

    family: str = "flux2"
    path: str = "black-forest-labs/FLUX.2-dev"
    guidance: Annotated[float, within("[0, 1000]")] = 4.0
    """Embedded guidance scale, in one evaluation."""
    true_cfg_scale: Annotated[float, SCALE] = 1.0
    """Additional classifier-free guidance, in two evaluations; 1 is none, as in diffusers' pipeline."""
    negative_prompt: Annotated[str, LONG_TEXT, TRUE_CFG] = ""
    max_sequence_length: int = 512
    """Maximum prompt length, in Mistral tokens, system message included."""


@dataclass
class SanaOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "sana"
    path: str = "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers"
    """Folder or hub id."""
    guidance: float = 4.5
    max_sequence_length: int = 300
    """Maximum prompt length in Gemma tokens, without the instruction before it."""


@dataclass
class QwenImageOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "qwen_image"
    path: str = "Qwen/Qwen-Image"
    """Folder or hub id."""
    guidance: float = 4.0
    """The pipeline's true_cfg_scale, in two evaluations; 1 is none."""
    max_sequence_length: Annotated[int, within("[1, 1024]")] = 512
    """Maximum prompt length, in Qwen2.5-VL tokens."""


@dataclass
class QwenImage21Options(FlowOptions):
    """The model, and which of its weights are trained."""

    passes_by_length: ClassVar[bool] = True

    family: str = "qwen_image21"
    path: str = "Qwen/Qwen-Image-2.1"
    """Folder or hub id."""
    guidance: float = 1.0
    """The pipeline's true_cfg_scale, in two evaluations; 1 is none, as the model is meant to be sampled."""
    max_sequence_length: Annotated[int, within("[1, 4096]")] = 512
    """Maximum prompt length, in Qwen3-VL tokens."""


@dataclass
class QwenImageEditOptions(QwenImageOptions):
    """The model, and which of its weights are trained."""

    family: str = "qwen_image_edit"
    path: str = "Qwen/Qwen-Image-Edit-2509"
    given_size: Annotated[int, within("[64, 4096]")] = 1024
    """Images to edit are scaled to given_size x given_size pixels in area, keeping their aspect ratio."""
    max_sequence_length: Annotated[int, within("[1, 3584]")] = 2048
    """Maximum length of a prompt and its image, in Qwen2.5-VL tokens."""


@dataclass
class LongCatOptions(MemoryOptions):
    """The model, and which of its weights are trained."""

    family: str = "longcat_image"
    path: str = "meituan-longcat/LongCat-Image"
    height: Annotated[int, within("[0, 16384]")] = 0
    """Height of the images in pixels; 0 means 1024."""
    width: Annotated[int, within("[0, 16384]")] = 0
    """Width of the images in pixels; 0 means 1024."""
    guidance: Annotated[float, SCALE] = 4.5
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none."""
    cfg_renorm_min: Annotated[float, within("[0, 1]"), needs("model.guidance", but=1) | GUIDED_ELSEWHERE] = 0.0
    """Least factor by which a guided token is shortened to the norm of the conditional one; 1 leaves its norm alone."""
    max_sequence_length: ClassVar[int] = 512
    """Fixed: the network reads padding, too."""


@dataclass
class ZImageOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    family: str = "z_image"
    path: str = "Tongyi-MAI/Z-Image-Turbo"
    """Folder or hub id."""
    guidance: float = 1.0
    """The pipeline's guidance_scale plus 1, in two evaluations; 1 is none, as Z-Image-Turbo needs it."""
    cfg_normalization: Annotated[float, within("[0, 1000]"), needs("model.guidance", but=1) | GUIDED_ELSEWHERE] = 0.0
    """Maximum norm of a guided prediction relative to the conditional one; 0 means no limit."""
    max_sequence_length: int = 512
    """Maximum prompt length, in Qwen3 tokens."""


@dataclass
class VideoOptions(FlowOptions):
    """The model, and which of its weights are trained."""

    frames: Annotated[int, within("[0, 4096]")] = 0
    """Frames of a video; 0 takes the model's default."""
    fps: Annotated[float, within("[0, 240]")] = 0.0
    """Frame rate of a video; 0 takes the model's default."""


@dataclass
class SanaVideoOptions(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "sana_video"
    path: str = "Efficient-Large-Model/SANA-Video_2B_480p_diffusers"
    """Folder or hub id."""
    height: int = 0
    """Height of the videos in pixels; 0 takes the model's default, 480 (720p: 704)."""
    width: int = 0
    """Width of the videos in pixels; 0 takes the model's default, 832 (720p: 1280)."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 4 (720p: 8); 0 means 81."""
    fps: float = 0.0
    """Frame rate of a video; 0 means 16."""
    guidance: float = 6.0
    max_sequence_length: int = 300
    """Maximum prompt length in Gemma tokens, without the instruction before it."""


@dataclass
class HunyuanVideoOptions(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "hunyuan_video"
    path: str = "hunyuanvideo-community/HunyuanVideo"
    """Folder or hub id."""
    height: int = 0
    """Height of the videos in pixels; 0 means 720."""
    width: int = 0
    """Width of the videos in pixels; 0 means 1280."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 4; 0 means 129."""
    fps: float = 0.0
    """Frame rate of a video; 0 means 24."""
    guidance: Annotated[float, within("[0, 1000]")] = 6.0
    """Embedded guidance scale, in one evaluation."""
    true_cfg_scale: Annotated[float, SCALE] = 1.0
    """Additional classifier-free guidance, in two evaluations; 1 is none."""
    negative_prompt: Annotated[str, LONG_TEXT, TRUE_CFG] = ""
    max_sequence_length: int = 256
    """Maximum prompt length, in Llama tokens."""


@dataclass
class SkyreelsOptions(HunyuanVideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "skyreels_i2v"
    transformer: Annotated[str, ANY_TEXT] = ""
    """Folder or hub id of a separately published network, Skywork/SkyReels-V1-Hunyuan-I2V; empty: that of path."""
    height: int = 0
    """Height of the videos in pixels; 0 means 544."""
    width: int = 0
    """Width of the videos in pixels; 0 means 960."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 4; 0 means 97."""
    guidance: float = 1.0
    true_cfg_scale: float = 6.0
    """Classifier-free guidance, in two evaluations; 1 is none."""


@dataclass
class HunyuanVideo15Options(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "hunyuan_video15"
    path: str = "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v"
    """Folder or hub id."""
    height: int = 0
    """Height of the videos in pixels; 0 takes the model's default, 480 (720p: 720)."""
    width: int = 0
    """Width of the videos in pixels; 0 takes the model's default, 848 (720p: 1280)."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 4; 0 means 121."""
    fps: float = 0.0
    """Frame rate of a video; 0 means 24."""
    guidance: float = 6.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none, for distilled models."""
    max_sequence_length: int = 1000
    """Maximum prompt length in Qwen2.5-VL tokens, without the instruction before it."""


@dataclass
class LtxVideoOptions(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "ltx_video"
    path: str = "Lightricks/LTX-Video"
    """Folder or hub id."""
    height: int = 0
    """Height of the videos in pixels; 0 means 512."""
    width: int = 0
    """Width of the videos in pixels; 0 means 704."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 8; 0 means 161."""
    fps: float = 0.0
    """Frame rate, also a conditioning input of the network; 0 means 25."""
    guidance: float = 3.0
    max_sequence_length: int = 128


@dataclass
class Ltx2Options(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "ltx2"
    path: str = "Lightricks/LTX-2"
    """Folder or hub id."""
    height: int = 0
    """Height of the videos in pixels; 0 means 512."""
    width: int = 0
    """Width of the videos in pixels; 0 means 768."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 8; 0 means 121. The sound lasts as long."""
    fps: float = 0.0
    """Frame rate, also a conditioning input of the network; 0 means 24."""
    guidance: float = 3.0
    sound_guidance: Annotated[float, within("0", "[1, 1000]")] = 0.0
    """Guidance of the sound, where it differs; 0 takes guidance, diffusers' pipeline has 7."""
    cross_timestep: bool = False
    """How attention between frames and sound is modulated: by the other stream's noise level, as LTX-2.3 and 2.5 were
    trained; by default by the own, as LTX-2.0 was."""
    max_sequence_length: int = 1024
    """Maximum prompt length, in Gemma tokens."""


@dataclass
class LtxImageOptions(LtxVideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "ltx_i2v"


@dataclass
class WanOptions(VideoOptions):
    """The model, and which of its weights are trained."""

    family: str = "wan"
    path: str = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
    """Folder or hub id."""
    frames: int = 0
    """Frames of a video, 1 more than a multiple of 4; 0 takes the model's default, 81 for published ones."""
    fps: float = 0.0
    """Frame rate of a video; 0 takes the model's default, 16 (Wan 2.2 5B: 24)."""
    height: int = 0
    """Height of a video in pixels; 0 takes the model's default, 480 for published ones."""
    width: int = 0
    """Width of a video in pixels; 0 takes the model's default, 832 for published ones."""
    guidance: float = 5.0
    whole_clips: bool = False
    """Take clips of answers from their first to their last frame, evenly in time, whatever their speed becomes; by
    default frames are those at the times of a sample's, from the first on, and a shorter clip is skipped."""
    guidance_2: Annotated[float, within("0", "[1, 1000]")] = 0.0
    """Guidance of the second network of Wan 2.2 14B, for low noise levels; 0 takes guidance."""
    max_sequence_length: int = 512
    """Maximum prompt length, in UMT5 tokens; 512 for Wan 2.1 image-to-video."""


@dataclass
class WanImageOptions(WanOptions):
    """The model, and which of its weights are trained."""

    family: str = "wan_i2v"
    path: str = "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"


@dataclass
class AmusedOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "amused"
    path: str = "amused/amused-512"
    height: Annotated[int, within("[0, 16384]")] = 0
    """Height of the images in pixels; 0 takes the checkpoint's own."""
    width: Annotated[int, within("[0, 16384]")] = 0
    """Width of the images in pixels; 0 takes the checkpoint's own."""
    guidance: Annotated[float, SCALE] = 10.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none."""
    negative_prompt: Annotated[str, LONG_TEXT, needs("model.guidance", but=1)] = ""
    """Negative prompt of classifier-free guidance; a row's own negative_prompt replaces it."""
    decode_batch_size: Annotated[int, COUNT] = 8
    """Memory limit: images decoded at a time."""


@dataclass
class JanusOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "janus"
    path: str = "deepseek-community/Janus-Pro-1B"
    size: Annotated[int, within("[0, 16384]")] = 0
    """Width and height of the images in pixels; 0 takes the tokenizer's own (384 of Janus-Pro), and any other size is
    refused."""
    guidance: Annotated[float, SCALE] = 5.0
    """Classifier-free guidance of the policy, in rollout, training and evaluation; 1 is none. The gradient grows with
    it, so a learning rate belongs to a scale."""
    decode_batch_size: Annotated[int, COUNT] = 8
    """Memory limit: images decoded at a time."""


@dataclass
class VarOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "var"
    path: str = ""
    """Folder."""
    size: Annotated[int, within("[0, 16384]")] = 0
    """Width and height of the images in pixels; 0 takes the tokenizer's own (256 of the published models), and any
    other size is refused."""
    guidance: Annotated[float, SCALE] = 5.0
    """Classifier-free guidance of the policy at the finest scale, in rollout, training and evaluation; it grows from
    none at the coarsest, and 1 is none at all. The published cfg is one less."""
    decode_batch_size: Annotated[int, COUNT] = 8
    """Memory limit: images decoded at a time."""


@dataclass
class ParallelSampling:
    """Sampling of tokens that are drawn several at a time, in rollouts and in evaluation."""

    steps: Annotated[int, within("[1, 10000]")] = 12
    """Passes of the network in which all tokens of an image are drawn."""
    temperature: Annotated[float, within("[0.001, 1000]")] = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered distribution."""
    evaluation_temperature: Annotated[float, within("0", "[0.001, 1000]")] = 1.0
    """Temperature of evaluation samples; 0 takes the most likely token of each place."""
    evaluation_steps: Annotated[int, within("[0, 10000]")] = 0
    """Passes of the network of an evaluation sample; 0 means steps."""
    forward_batch_size: Annotated[int, COUNT] = 64
    """Memory limit: samples of one forward pass without gradient."""
    plan_per: ClassVar[str] = "round"
    """Fixed: all images take as many passes."""
    reveals: ClassVar[str] = "scheduled"
    """Fixed where tokens have one order."""
    likelihood: ClassVar[str] = "drawn"
    """Fixed where tokens have one order."""
    masks: ClassVar[int] = 0
    """Fixed where tokens have one order."""
    mask_share: ClassVar[float] = 0.0
    """Fixed where tokens have one order."""


@dataclass
class ScaleSampling(ParallelSampling):
    """Sampling of the codes of images scale by scale, in rollouts and in evaluation."""

    steps: ClassVar[int] = 0  # type: ignore[misc]
    """Fixed: as many passes as scales."""
    evaluation_steps: ClassVar[int] = 0  # type: ignore[misc]
    """Fixed."""


@dataclass
class MaskedSampling(ParallelSampling):
    """Sampling of masked tokens, in rollouts and in evaluation."""

    reveals: Annotated[str, one_of("scheduled", "drawn")] = "scheduled"
    """How many tokens a pass reveals: the checkpoint's schedule, or drawn, each token by itself with the schedule's
    shares as chances (MaskGRPO's sampler)."""
    likelihood: Annotated[str, one_of("drawn", "remasked", "conditional")] = "drawn"
    """What is scored and trained: drawn, each token in the pass that drew it (exact), or the finished image with masks
    of its own: remasked, of many tokens (MaskGRPO's estimate), or conditional, of one (SEPO's)."""
    masks: Annotated[int, within("[1, 1000]"), needs("sampling.likelihood", "remasked", "conditional")] = 6
    """remasked, conditional: masks of a sample, each a forward and backward pass."""
    mask_share: Annotated[float, within("[0, 1)"), needs("sampling.likelihood", "remasked")] = 0.6
    """remasked: the share of tokens that is masked rises from about mask_share with the first mask to all but none
    with the last."""


@dataclass
class VisualSampling(DenoisingSampling):
    """Sampling in rollouts and in evaluation."""

    rollout_guidance: Annotated[
        float, within("0", "[1, 1000]"), needs("sampling.policy", "transitions", "matching")
    ] = 0.0
    """Classifier-free guidance of rollouts; 0 means that of the policy (model.guidance, or true_cfg_scale), which is
    scored, trained and evaluated. Old log-probabilities are the policy's own, so the ratio starts at one."""
    reference_guidance: Annotated[float, within("0", "[1, 1000]"), MATCHING, needs(REFERENCE)] = 0.0
    """matching: classifier-free guidance of the reference in the loss; 0 means that of the policy. A policy trained
    without guidance learns to imitate it (CRD, DGPO: 4.5)."""
    evaluation_guidance: Annotated[float, within("0", "[1, 1000]")] = 0.0
    """Classifier-free guidance of evaluation samples; 0 means that of the policy."""
    evaluation_height: Annotated[int, within("[0, 16384]")] = 0
    """Height of evaluation samples in pixels; 0 means model.height."""
    evaluation_width: Annotated[int, within("[0, 16384]")] = 0
    """Width of evaluation samples in pixels; 0 means model.width."""
    evaluation_frames: Annotated[int, within("[0, 4096]")] = 0
    """Frames of evaluation samples of video models; 0 means model.frames."""


@dataclass
class VisualDiffusionSampling(DiffusionSampling, VisualSampling):
    """Sampling in rollouts and in evaluation, by DDIM whatever scheduler the checkpoint has."""


@dataclass
class ImageTokenSampling(TokenSampling):
    """Sampling of the codes of images in rollouts and in evaluation."""

    temperature: float = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered, guided distribution."""
    evaluation_temperature: float = 1.0
    dtype: Annotated[str, one_of("", "bfloat16", "float16")] = ""
    """Precision of sampling, bfloat16 or float16, with log-probabilities recomputed in model.dtype; empty:
    model.dtype."""
    plan_tokens: Annotated[int, within("[0, 1e6]")] = 0
    """Maximum length of a plan in words, which the model writes before each image, draws by, and is trained on with the
    codes (T2I-R1); 0: it draws by the prompt alone."""
    instruction: Annotated[str, LONG_TEXT, needs("sampling.plan_tokens", but=0)] = (
        "Describe in at most 50 words the image that this prompt asks for: all its things, their attributes, numbers "
        "and places, and nothing else.\n{prompt}"
    )
    """What the model is asked for a plan; {prompt} stands for the prompt."""
    max_tokens: ClassVar[int] = 0
    """Fixed: an image has as many codes as its tokenizer makes of it."""
    search: ClassVar[str] = "sample"
    truncated: ClassVar[str] = "train"
    features_kept: ClassVar[int] = 0


@dataclass
class VisualData(Data):
    """The data sets of prompts."""

    train: str = "embedded:visual/scenes/train.jsonl"
    """Training prompts: JSONL (text, answer, meta), plain text (a prompt per line), or an embedded file,
    embedded:<modality>/<file>."""
    heldout: str = "embedded:visual/scenes/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    media_root: Annotated[str, ANY_TEXT] = ""
    """Root of relative paths of images of prompts; empty: the folder of the prompt file."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of prompts that may be skipped because their image cannot be read; each is listed in
    skipped.jsonl. 0 stops at the first."""


@dataclass
class VisualEval(Eval):
    """Evaluation on prompts that are never trained on."""

    batch_size: int = 256
    """Memory limit: samples generated at a time in evaluation."""
