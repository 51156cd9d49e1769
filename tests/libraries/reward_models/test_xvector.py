"""Speaker similarity by x-vectors, on tiny WavLM checkpoints of the real classes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Prompt
from reward_models.speech import audio
from reward_models.speech.speaker import reference_embedding, speaker_similarity
from reward_models.speech.xvector import xvector_encoder

transformers = pytest.importorskip("transformers")

RATE = 16_000
PROMPT = Prompt("one two three", "one")


def write(folder: Path, kind: str = "WavLMForXVector", norm: str = "group") -> str:
    """A random checkpoint of the real architecture with narrow layers; its stride is 4 x 4 = 16 samples."""
    config = transformers.WavLMConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_kernel=(8, 4),
        conv_stride=(4, 4),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm=norm,
        do_stable_layer_norm=norm == "layer",
        tdnn_dim=(16, 16, 24),
        tdnn_kernel=(5, 3, 1),
        tdnn_dilation=(1, 2, 1),
        xvector_output_dim=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, kind)(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=norm == "layer", return_attention_mask=True).save_pretrained(
        folder
    )
    return str(folder)


@pytest.fixture(params=["group", "layer"])
def checkpoint(request, tmp_path) -> str:
    return write(tmp_path / request.param, norm=request.param)


def voice(seconds: float, seed: int = 0, rate: int = RATE) -> Audio:
    noise = torch.randn(1, int(seconds * rate), generator=torch.Generator().manual_seed(seed))
    return Audio((0.1 * noise).clamp(-1, 1), rate)


def saved(file: Path, sound: Audio) -> str:
    soundfile.write(file, sound.samples.T.numpy(), sound.rate, subtype="FLOAT")
    return str(file)


def test_an_embedding_is_that_of_transformers_bit_for_bit(checkpoint):
    samples = voice(0.5).samples[0].numpy()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint)
    network = transformers.WavLMForXVector.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        plain = network(extractor(samples, sampling_rate=RATE, return_tensors="pt").input_values).embeddings
    expected = torch.nn.functional.normalize(plain, dim=-1)[0]
    assert torch.equal(torch.from_numpy(xvector_encoder(checkpoint).embed(samples)), expected)


def test_equal_sounds_have_similarity_one_and_others_less(checkpoint, tmp_path):
    reference = saved(tmp_path / "a.wav", voice(0.5))
    reward = scorer(f"speaker_similarity(encoder='{checkpoint}', reference='{reference}')")
    same, other = reward.fn([PROMPT] * 2, [voice(0.5), voice(0.5, seed=1)])
    assert same == pytest.approx(1, abs=1e-6) and -1 <= other < 1 - 1e-5


def test_a_similarity_does_not_depend_on_the_other_sounds_of_the_batch(checkpoint, tmp_path):
    reference, short, long = saved(tmp_path / "a.wav", voice(0.5)), voice(0.3, seed=1), voice(1.0, seed=2)

    def score(*outputs: Audio) -> list[float]:
        audio._cache.clear()  # cached scores would be equal in any case
        return speaker_similarity([PROMPT] * len(outputs), outputs, reference=reference, encoder=checkpoint)

    assert score(short, long) == [*score(short), *score(long)]


def test_a_batch_of_transformers_does_depend_on_its_padding(checkpoint):
    # The reason why sounds are embedded one by one; where this fails, batches have become exact.
    short, long = voice(0.3, seed=1).samples[0].numpy(), voice(1.0, seed=2).samples[0].numpy()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint)
    network = transformers.WavLMForXVector.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        batch = extractor([short, long], sampling_rate=RATE, return_tensors="pt", padding=True)
        padded = torch.nn.functional.normalize(network(**batch).embeddings, dim=-1)[0]
    alone = torch.from_numpy(xvector_encoder(checkpoint).embed(short))
    assert float((padded - alone).abs().max()) > 1e-5


def test_a_sound_at_another_rate_is_resampled(checkpoint, tmp_path):
    time = torch.arange(RATE) / RATE
    tone = Audio((0.3 * torch.sin(2 * math.pi * 300 * time))[None], RATE)
    half = Audio((0.3 * torch.sin(2 * math.pi * 300 * time[::2]))[None], RATE // 2)
    (value,) = speaker_similarity([PROMPT], [half], reference=saved(tmp_path / "a.wav", tone), encoder=checkpoint)
    assert value > 0.99


def test_a_sound_too_short_for_the_convolutions_is_nan_and_such_a_reference_an_error(checkpoint, tmp_path):
    # Two frames after the time delay network need 2 + 1 (5 - 1) + 2 (3 - 1) = 10 frames; 10 frames need
    # 9 x 4 + 4 = 40 of the first layer, and these 39 x 4 + 8 = 164 samples.
    encoder = xvector_encoder(checkpoint)
    assert encoder.shortest == 164
    noise = voice(0.5).samples[0].numpy()
    assert np.isfinite(encoder.embed(noise[:164])).all()
    with pytest.raises(ValueError, match="163.*16000"):
        encoder.embed(noise[:163])
    reference = saved(tmp_path / "a.wav", voice(0.5))
    enough, short = (Audio(voice(0.5).samples[:, :count], RATE) for count in (164, 163))
    values = speaker_similarity([PROMPT] * 2, [enough, short], reference=reference, encoder=checkpoint)
    assert math.isfinite(values[0]) and math.isnan(values[1])
    assert np.isfinite(reference_embedding(saved(tmp_path / "enough.wav", enough), checkpoint)).all()
    with pytest.raises(ValueError, match=r"short\.wav.*163.*164"):
        reference_embedding(saved(tmp_path / "short.wav", short), checkpoint)


def test_a_checkpoint_is_loaded_once(checkpoint):
    assert xvector_encoder(checkpoint, "cpu") is xvector_encoder(checkpoint, "cpu")


def test_a_checkpoint_without_the_head_or_of_another_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"\d+.*WavLMForXVector"):
        xvector_encoder(write(tmp_path / "plain", kind="WavLMModel"))
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="'bert'"):
        xvector_encoder(str(tmp_path / "bert"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        xvector_encoder("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty'"):
        xvector_encoder(str(tmp_path / "empty"))


def test_an_encoder_is_a_folder_or_a_hub_id(monkeypatch):
    class Reached(Exception):
        pass

    def reached(*given):
        raise Reached

    monkeypatch.setattr("reward_models.speech.xvector.check_weight_files", reached)
    with pytest.raises(Reached):
        xvector_encoder.__wrapped__("owner/name")
    for path in ("nowhere", "a/b/c"):
        with pytest.raises(FileNotFoundError, match=f"'{path}'"):
            xvector_encoder.__wrapped__(path)


def test_no_code_of_a_checkpoint_is_run(tmp_path):
    folder, marker = Path(write(tmp_path / "a")), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n")
    for name, kind in (("config.json", "AutoConfig"), ("preprocessor_config.json", "AutoFeatureExtractor")):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, "auto_map": {kind: "own.Own"}}))
    assert xvector_encoder(str(folder)).shortest == 164 and not marker.exists()


def test_a_checkpoint_in_half_precision_is_read_in_full(tmp_path):
    folder = write(tmp_path / "a")
    transformers.WavLMForXVector.from_pretrained(folder).half().save_pretrained(folder)
    network = xvector_encoder(folder).network
    assert {one.dtype for one in network.parameters()} == {torch.float32} and not network.training
    assert not any(one.requires_grad for one in network.parameters())


def test_weights_belong_to_the_default_encoder_only():
    with pytest.raises(ValueError, match="encoder='a/b.*weights='c.whl"):
        speaker_similarity([PROMPT], [voice(0.5)], reference="a.wav", encoder="a/b", weights="c.whl")


def test_weights_that_no_embedding_uses_may_be_missing(tmp_path):
    folder = Path(write(tmp_path / "a"))
    weights = load_file(folder / "model.safetensors")
    used = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    assert len(used) < len(weights)
    save_file(used, folder / "model.safetensors", {"format": "pt"})
    assert np.isfinite(xvector_encoder(str(folder)).embed(voice(0.5).samples[0].numpy())).all()
