"""The families of generators of images and clips, by denoising and by tokens."""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.family import Family
from pipelines.visual.family import visual_family
from pipelines.visual.options import (
    AmusedOptions,
    EditOptions,
    FluxOptions,
    HunyuanVideoOptions,
    JanusOptions,
    KleinOptions,
    KontextOptions,
    LongCatOptions,
    LtxImageOptions,
    LtxVideoOptions,
    MaskedSampling,
    QwenImageEditOptions,
    QwenImageOptions,
    SanaOptions,
    SdxlOptions,
    SkyreelsOptions,
    StableDiffusionOptions,
    VarOptions,
    WanImageOptions,
    WanOptions,
    ZImageOptions,
)
from pipelines.visual.parallel import parallel_family
from pipelines.visual.scale_family import scale_family
from pipelines.visual.token_family import token_family

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        visual_family(
            "sd3",
            "Stable Diffusion 3 and 3.5, and small models of their architecture",
            "pipelines.visual.sd3",
            ("StableDiffusion3Pipeline", "SD3Transformer2DModel"),
        ),
        visual_family(
            "sd3_edit",
            "small models of Stable Diffusion 3's architecture that edit an image",
            "pipelines.visual.sd3_edit",
            ("SD3Transformer2DModel",),
            EditOptions,
            image_input="required",
        ),
        visual_family(
            "flux",
            "FLUX.1 dev and schnell",
            "pipelines.visual.flux",
            ("FluxPipeline",),
            FluxOptions,
            guidance="true_cfg_scale",
        ),
        visual_family(
            "stable_diffusion",
            "Stable Diffusion 1.x and 2.x",
            "pipelines.visual.stable_diffusion",
            ("StableDiffusionPipeline",),
            StableDiffusionOptions,
            process="diffusion",
            blocks=("BasicTransformerBlock", "ResnetBlock2D"),
        ),
        visual_family(
            "sdxl",
            "Stable Diffusion XL",
            "pipelines.visual.sdxl",
            ("StableDiffusionXLPipeline",),
            SdxlOptions,
            process="diffusion",
            blocks=("BasicTransformerBlock", "ResnetBlock2D"),
        ),
        visual_family(
            "flux_kontext",
            "FLUX.1 Kontext, image editing",
            "pipelines.visual.flux_kontext",
            ("FluxKontextPipeline",),
            KontextOptions,
            guidance="true_cfg_scale",
            image_input="optional",
            in_step=False,
        ),
        visual_family(
            "flux2_klein",
            "FLUX.2 klein, generation and image editing",
            "pipelines.visual.flux2_klein",
            ("Flux2KleinPipeline",),
            KleinOptions,
            image_input="optional",
            in_step=False,
        ),
        visual_family("sana", "Sana 1.0 and 1.5", "pipelines.visual.sana", ("SanaPipeline",), SanaOptions),
        visual_family(
            "qwen_image",
            "Qwen-Image",
            "pipelines.visual.qwen_image",
            ("QwenImagePipeline",),
            QwenImageOptions,
        ),
        visual_family(
            "qwen_image_edit",
            "Qwen-Image-Edit and -Plus (2509, 2511), which edit one given image",
            "pipelines.visual.qwen_image_edit",
            ("QwenImageEditPipeline", "QwenImageEditPlusPipeline"),
            QwenImageEditOptions,
            image_input="required",
            in_step=False,
        ),
        visual_family(
            "z_image",
            "Z-Image and Z-Image-Turbo",
            "pipelines.visual.z_image",
            ("ZImagePipeline",),
            ZImageOptions,
        ),
        visual_family(
            "longcat_image",
            "LongCat-Image",
            "pipelines.visual.longcat_image",
            ("LongCatImagePipeline",),
            LongCatOptions,
        ),
        visual_family(
            "hunyuan_video",
            "HunyuanVideo, text-to-video",
            "pipelines.visual.hunyuan_video",
            ("HunyuanVideoPipeline",),
            HunyuanVideoOptions,
            guidance="true_cfg_scale",
        ),
        visual_family(
            "skyreels_i2v",
            "SkyReels-V1, a HunyuanVideo, image-to-video",
            "pipelines.visual.skyreels_i2v",
            ("HunyuanSkyreelsImageToVideoPipeline", "HunyuanVideoPipeline"),
            SkyreelsOptions,
            guidance="true_cfg_scale",
            image_input="required",
        ),
        visual_family(
            "ltx_video",
            "LTX-Video, text-to-video",
            "pipelines.visual.ltx_video",
            ("LTXPipeline",),
            LtxVideoOptions,
        ),
        visual_family(
            "ltx_i2v",
            "LTX-Video, image-to-video",
            "pipelines.visual.ltx_i2v",
            ("LTXImageToVideoPipeline", "LTXPipeline"),
            LtxImageOptions,
            image_input="required",
        ),
        visual_family(
            "wan",
            "Wan 2.1 and 2.2, text-to-video, and small models of their architecture",
            "pipelines.visual.wan",
            ("WanPipeline", "WanTransformer3DModel"),
            WanOptions,
            blocks=("WanTransformerBlock", "WanTransformer3DModel"),
        ),
        visual_family(
            "wan_i2v",
            "Wan 2.1 and 2.2, image-to-video",
            "pipelines.visual.wan_i2v",
            ("WanImageToVideoPipeline", "WanPipeline"),
            WanImageOptions,
            image_input="required",
            blocks=("WanTransformerBlock", "WanTransformer3DModel"),
        ),
        parallel_family(
            "amused",
            "aMUSEd, masked image tokens",
            "pipelines.visual.amused",
            ("AmusedPipeline", "UVit2DModel"),
            AmusedOptions,
            MaskedSampling,
        ),
        token_family(
            "janus",
            "Janus and Janus-Pro, which draw images token by token",
            "pipelines.visual.janus",
            ("janus",),
            JanusOptions,
        ),
        scale_family(
            "var",
            "VAR, which draws images of a class scale by scale",
            "pipelines.visual.var",
            ("NextScaleTransformer",),
            VarOptions,
        ),
    )
}
"""Name to family."""
