"""Synthesize the embedded sentences: clips of several voices in noise, and their rows for training and evaluation.

    python -m scripts.pretrain.speech_data           # writes pipelines/speech/assets; needs espeak-ng (1.51 was used)
    python -m scripts.pretrain.speech_data --output /tmp/quiet --snrs 40 --seed 1
    python -m scripts.pretrain.speech_data --natural /usr/share/pocketsphinx/test/data    # also the natural clips
    python -m scripts.pretrain.speech_data --telephone /usr/share                         # also telephone announcements

Train, tune and heldout share neither sentences nor voices. A row:

    {"id": "train-000", "text": "", "audio": "clips/train-000.opus", "answer": "She wore silver earrings ...",
     "task": "transcribe", "meta": {"voice": "en-us+m3", "speed": 165, "noise": "pink", "snr": 20.0}}

Paths are relative to the JSONL file. Clips are Opus, 16 kHz, one channel. Equal arguments and versions of espeak-ng and
Opus write equal bytes. The natural clips come from Debian's pocketsphinx-testdata, the announcements of a telephone
exchange from asterisk-core-sounds-en-wav (see LICENSES.md there).
"""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.files import write_bytes, write_text

if TYPE_CHECKING:  # these import torch, which --help need not wait for
    import numpy as np

    from mmgrpo.types import Audio

RATE = 16_000
TRAINED = (
    *("en-us+m3", "en-gb-x-rp+f2", "en-029", "en-us+f2", "en-us+m2", "en-gb-x-rp+m4"),
    *("en-029+m6", "en-us+Andy", "en-gb-x-rp+Annie", "en-029+linda", "en-gb-x-rp+Michael", "en-us+Mike"),
)
VOICES = {
    "train": (TRAINED, TRAINED),
    "tune": (("en-us+f4", "en-gb-x-gbcwmd+m1"), ("en-gb+f1", "en-us-nyc+m5")),
    "heldout": (("en-gb-scotland+f3", "en-gb-x-gbclan+m7", "en-us+f5", "en-gb+m8"),),
}
"""Voices of espeak-ng, an accent and a variant, of every part of a split. Splits share no voice."""
COUNTS = {"tune": (32, 80)}
"""Sentences of the parts for tuning; all others are for training."""
STREAMS = {"train": (1, 4), "tune": (2, 0), "heldout": (3,)}
"""Numbers of the streams of random numbers of the parts."""

NATURAL = {
    "librivox/sense_and_sensibility_01_austen_64kb-0870.wav": "and mister john dashwood had then leisure to consider "
    "how much there might be prudently in his power to do for them",
    "librivox/sense_and_sensibility_01_austen_64kb-0880.wav": "he was not an ill disposed young man",
    "librivox/sense_and_sensibility_01_austen_64kb-0890.wav": "unless to be rather cold hearted and rather selfish is "
    "to be ill disposed",
    "librivox/sense_and_sensibility_01_austen_64kb-0920.wav": "had he married a more amiable woman he might have been "
    "made still more respectable than he was",
    "librivox/sense_and_sensibility_01_austen_64kb-0930.wav": "he might even have been made amiable himself",
    "cards/001.wav": "ten of clubs",
    "cards/002.wav": "four queen of clubs",
    "cards/003.wav": "seven of clubs",
    "cards/004.wav": "five five",
    "cards/005.wav": "eight of spades four of clubs seven of hearts",
    "goforward.raw": "go forward ten meters",
    "something.raw": "go somewhere and do something",
}
"""Recordings of people and their transcripts (without a hesitation in 0920). Raw files: 16 bits, 16 kHz."""


TELEPHONE = {"telephone_train": slice(0, 100), "telephone": slice(100, 160)}
"""Announcements for training and for evaluation, of all suitable ones in random order."""


@dataclass
class Args:
    """Which clips to write."""

    output: Path = Path("pipelines/speech/assets")
    """Output folder: train.jsonl, tune.jsonl, heldout.jsonl and clips/."""
    sentences: Path = Path("pipelines/speech/assets/sentences.txt")
    """Sentences for training and tuning, one per line."""
    compounds: Path = Path("pipelines/speech/assets/sentences_compounds.txt")
    """Further sentences for training, one per line, with hyphens: from the others the model learns to write none."""
    heldout: Path = Path("pipelines/speech/assets/sentences_heldout.txt")
    """Sentences for evaluation, one per line, none of them in the other files."""
    snrs: tuple[float, ...] = (30.0, 20.0)
    """Signal-to-noise ratios in dB, one per clip, all equally often."""
    seed: int = 0
    """Seed of the splits, the noise and the speed of speech."""
    natural: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: they are left as they are)")] = None
    """Folder of pocketsphinx's test data: also write natural.jsonl and natural/."""
    telephone: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: they are left as they are)")] = None
    """Folder of Asterisk's recordings and documentation: also write telephone_train.jsonl, telephone.jsonl and their
    clips."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    files = (args.sentences, args.compounds, args.heldout)
    sentences = [file.read_text(encoding="utf-8").splitlines() for file in files]
    for split, parts in split_sentences(*sentences, seed=args.seed).items():
        count = write_split(args.output, split, parts, args.snrs, args.seed)
        print(f"{args.output / split}.jsonl: {count} clips", flush=True)
    if args.natural:
        print(f"{args.output / 'natural'}.jsonl: {write_natural(args.output, args.natural)} clips")
    if args.telephone:
        for split, count in write_telephone(args.output, args.telephone).items():
            print(f"{args.output / split}.jsonl: {count} clips")


def split_sentences(
    sentences: list[str], compounds: list[str], heldout: list[str], seed: int
) -> dict[str, list[list[str]]]:
    """The parts of every split. ``sentences`` are divided between training and tuning in an order determined by the
    seed; ``compounds``, for training, and ``heldout`` are kept as they are."""
    every, least = [*sentences, *compounds, *heldout], sum(COUNTS["tune"])
    if len(set(every)) != len(every) or len(sentences) <= least:
        raise SystemExit(
            f"--sentences: got {len(sentences)} sentences, and {len(set(every))} distinct ones of {len(every)} in all "
            f"files, expected more than {least} and all distinct; add sentences or remove duplicates"
        )
    shuffled, tune = random.Random(seed).sample(sentences, len(sentences)), []
    for count in COUNTS["tune"]:
        tune.append(shuffled[:count])
        shuffled = shuffled[count:]
    return {"train": [shuffled, compounds], "tune": tune, "heldout": [heldout]}


def write_split(folder: Path, split: str, parts: list[list[str]], snrs: tuple[float, ...], seed: int) -> int:
    """Synthesize the sentences of a split, add noise, and write clips and rows; returns their number."""
    import numpy as np

    lines = []
    for sentences, voices, stream in zip(parts, VOICES[split], STREAMS[split], strict=True):
        for number, sentence in enumerate(sentences):
            generator = np.random.default_rng([seed, stream, number])
            voice = voices[number % len(voices)]
            speed, noise = int(generator.integers(150, 181)), ("pink", "white")[int(generator.integers(2))]
            snr = snrs[number // len(voices) % len(snrs)]
            clip, name = add_noise(speak(sentence, voice, speed), snr, noise, generator), f"{split}-{len(lines):03d}"
            write_bytes(folder / f"clips/{name}.opus", opus(clip))
            meta = {"voice": voice, "speed": speed, "noise": noise, "snr": snr}
            lines.append(row(name, f"clips/{name}.opus", sentence, meta))
    write_text(folder / f"{split}.jsonl", "".join(lines))
    return len(lines)


def write_natural(folder: Path, source: Path) -> int:
    """Write recordings of people losslessly, and their rows; returns their number."""
    import soundfile

    lines = []
    for file, transcript in NATURAL.items():
        raw: dict[str, Any] = {"samplerate": RATE, "channels": 1, "subtype": "PCM_16", "format": "RAW"}
        samples, rate = soundfile.read(source / file, dtype="int16", **(raw if file.endswith(".raw") else {}))
        name = f"natural-{Path(file).stem.rpartition('-')[2]}"
        content = io.BytesIO()
        soundfile.write(content, samples, rate, format="FLAC")
        write_bytes(folder / f"natural/{name}.flac", content.getvalue())
        meta = {"voice": "natural", "source": f"pocketsphinx/{file}"}
        lines.append(row(name, f"natural/{name}.flac", transcript, meta))
    write_text(folder / "natural.jsonl", "".join(lines))
    return len(lines)


def write_telephone(folder: Path, source: Path) -> dict[str, int]:
    """Write announcements of a telephone exchange, spoken by Allison Smith, and their rows; returns the numbers.

    Texts for training contain no signs (* and #), which she reads as words, and differ from those for evaluation.
    """
    import gzip

    import soundfile
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    sounds = source / "asterisk/sounds/en_US_f_Allison"
    with gzip.open(source / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz", "rt", errors="replace") as file:
        pairs = [line.split(":", 1) for line in file if ":" in line and not line.startswith(";")]
    # Whole sentences only: no noises in brackets, and none that continues in another file.
    texts = {name.strip(): text.strip() for name, text in pairs if not re.search(r"[\[\]<>(]|\.\.\.", text)}
    suitable = [
        name
        for name, text in texts.items()
        if (sounds / f"{name}.wav").is_file()
        and len(text.split()) >= 4
        and 1.5 <= soundfile.info(sounds / f"{name}.wav").duration <= 9
    ]
    random.Random(0).shuffle(suitable)
    splits = {split: suitable[part] for split, part in TELEPHONE.items()}
    heldout = {_letters(texts[name]) for name in splits["telephone"]}
    splits["telephone_train"] = [
        name
        for name in splits["telephone_train"]
        if _letters(texts[name]) not in heldout and not re.search("[*#]", texts[name])
    ]
    for split, names in splits.items():
        lines = []
        for name in names:
            samples, rate = soundfile.read(sounds / f"{name}.wav", dtype="float32")
            clip = resample(Audio(torch.from_numpy(samples)[None], rate), RATE)
            file = f"{split}/{name.replace('/', '-')}.opus"
            write_bytes(folder / file, opus(clip.samples[0].numpy()))
            meta = {"voice": "allison", "source": f"asterisk-core-sounds-en/{name}.wav"}
            lines.append(row(file.removesuffix(".opus").replace("/", "-"), file, _sentence(texts[name]), meta))
        write_text(folder / f"{split}.jsonl", "".join(lines))
    return {split: len(names) for split, names in splits.items()}


def _sentence(text: str) -> str:
    """The text with a capital and a full stop, which the package often omits."""
    sentence = text[0].upper() + text[1:]
    return sentence if sentence[-1] in ".!?" else f"{sentence}."


def _letters(text: str) -> str:
    """The letters of a text, for comparisons."""
    return re.sub("[^a-z]", "", text.lower())


def row(name: str, file: str, transcript: str, meta: dict[str, Any]) -> str:
    """A line of a JSONL file."""
    content = {"id": name, "text": "", "audio": file, "answer": transcript, "task": "transcribe", "meta": meta}
    return json.dumps(content) + "\n"


def speak(sentence: str, voice: str, speed: int) -> Audio:
    """A sentence in a voice of espeak-ng at ``speed`` words per minute, at 16 kHz, between 0.1 s of silence."""
    import soundfile
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", sentence]
    try:
        content = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise SystemExit("espeak-ng is not installed; on Debian: apt-get install espeak-ng") from error
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    audio = resample(Audio(torch.from_numpy(samples)[None], rate), RATE)
    return Audio(torch.nn.functional.pad(audio.samples, (RATE // 10, RATE // 10)), RATE)


def add_noise(audio: Audio, snr: float, kind: str, generator: np.random.Generator) -> np.ndarray:
    """Speech and noise, 10 log10(mean power of speech / mean power of noise) = ``snr`` dB, with a peak of 0.9.

    The power spectrum of white noise is constant, that of pink noise 1 / f.
    """
    import numpy as np

    speech = audio.samples[0].double().numpy()
    noise = generator.standard_normal(len(speech))
    if kind == "pink":
        tilt = np.arange(len(speech) // 2 + 1, dtype=float)
        tilt[0] = 1
        noise = np.fft.irfft(np.fft.rfft(noise) / np.sqrt(tilt), len(speech))
    noise *= np.sqrt(np.mean(speech**2) / np.mean(noise**2) / 10 ** (snr / 10))
    return ((speech + noise) * 0.9 / np.abs(speech + noise).max()).astype(np.float32)


def opus(samples: np.ndarray, bits_per_second: int = 24_000) -> bytes:
    """The bytes of an Ogg Opus file at 16 kHz; the serial number, by default random, is fixed."""
    import av
    import numpy as np

    file = io.BytesIO()
    with av.open(file, "w", format="ogg", options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream("libopus", rate=RATE, layout="mono")
        stream.bit_rate, stream.codec_context.flags = bits_per_second, stream.codec_context.flags | 0x800000
        whole = (samples * 32767).round().astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
        frame.sample_rate = RATE
        for piece in (frame, None):
            for packet in stream.encode(piece):
                container.mux(packet)
    return file.getvalue()


if __name__ == "__main__":
    main()
