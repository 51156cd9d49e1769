"""Speak the embedded sentences: clips of several voices in noise, and their rows for training and reports.

    python -m scripts.pretrain.speech_data           # writes pipelines/speech/assets; needs espeak-ng (1.51 was used)
    python -m scripts.pretrain.speech_data --output /tmp/quiet --snrs 40 --seed 1
    python -m scripts.pretrain.speech_data --natural /usr/share/pocketsphinx/test/data    # also the natural clips
    python -m scripts.pretrain.speech_data --telephone /usr/share                       # also those of telephones

Train, tune and heldout share neither sentences nor voices. A row:

    {"id": "train-000", "text": "", "audio": "clips/train-000.opus", "answer": "She wore silver earrings ...",
     "task": "transcribe", "meta": {"voice": "en-us+m3", "speed": 165, "noise": "pink", "snr": 20.0}}

Paths are relative to the JSONL file. Clips are Opus, 16 kHz, one channel. The same arguments and versions of espeak-ng
and Opus write the same bytes. The natural clips come from Debian's pocketsphinx-testdata, those of a telephone exchange
from asterisk-core-sounds-en-wav (see LICENSES.md there).
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

from mmgrpo.runtime.files import write_bytes, write_text

if TYPE_CHECKING:  # these import torch, which --help need not wait for
    import numpy as np

    from mmgrpo.types import Audio

RATE = 16_000
COUNTS = {"tune": 32, "heldout": 80}
"""Sentences of the splits; those that are left are for training."""

VOICES = {
    "train": ("en-us+m3", "en-gb-x-rp+f2", "en-029", "en-us+f2"),
    "tune": ("en-us+f4", "en-gb-x-gbcwmd+m1"),
    "heldout": ("en-gb+f1", "en-us-nyc+m5"),
}
"""Voices of espeak-ng: an accent and a variant. No voice of one split is in another."""

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
"""Recordings of people and what they say (a hesitation in 0920 is not written). Raw files: 16 bits, 16 kHz."""


TELEPHONE = {"telephone_train": slice(0, 100), "telephone": slice(100, 160)}
"""Which announcements are for training and for evaluation, of all that fit in a drawn order."""


@dataclass
class Args:
    output: Path = Path("pipelines/speech/assets")
    """Folder that is written: train.jsonl, tune.jsonl, heldout.jsonl and clips/."""
    sentences: Path = Path("pipelines/speech/assets/sentences.txt")
    """What is spoken, one sentence a line."""
    snrs: tuple[float, ...] = (30.0, 20.0)
    """Signal-to-noise ratios in dB; every clip has one of them, all equally often."""
    seed: int = 0
    """Seed of the splits, the noise and the speed of speech."""
    natural: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: they are left as they are)")] = None
    """Folder of pocketsphinx's test data: also write natural.jsonl and natural/."""
    telephone: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: they are left as they are)")] = None
    """Folder that holds Asterisk's sounds and documentation: also write telephone_train.jsonl, telephone.jsonl and
    their clips."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    sentences = args.sentences.read_text(encoding="utf-8").splitlines()
    for split, spoken in split_sentences(sentences, args.seed).items():
        write_split(args.output, split, spoken, args.snrs, args.seed)
        print(f"{args.output / split}.jsonl: {len(spoken)} clips", flush=True)
    if args.natural:
        print(f"{args.output / 'natural'}.jsonl: {write_natural(args.output, args.natural)} clips")
    if args.telephone:
        for split, count in write_telephone(args.output, args.telephone).items():
            print(f"{args.output / split}.jsonl: {count} clips")


def split_sentences(sentences: list[str], seed: int) -> dict[str, list[str]]:
    """Each sentence in one split, in an order that the seed draws."""
    if len(set(sentences)) != len(sentences) or len(sentences) <= sum(COUNTS.values()):
        raise SystemExit(f"wanted more than {sum(COUNTS.values())} different sentences; there are {len(sentences)}")
    drawn, splits, start = random.Random(seed).sample(sentences, len(sentences)), {}, 0
    for split, count in COUNTS.items():
        splits[split], start = drawn[start : start + count], start + count
    return {"train": drawn[start:], **splits}


def write_split(folder: Path, split: str, sentences: list[str], snrs: tuple[float, ...], seed: int) -> None:
    """Speak, disturb and write every sentence of a split, and then its rows."""
    import numpy as np

    lines = []
    for number, sentence in enumerate(sentences):
        drawn = np.random.default_rng([seed, sorted(VOICES).index(split), number])
        voice = VOICES[split][number % len(VOICES[split])]
        speed, noise = int(drawn.integers(150, 181)), ("pink", "white")[int(drawn.integers(2))]
        snr = snrs[number // len(VOICES[split]) % len(snrs)]
        clip, name = noisy(speak(sentence, voice, speed), snr, noise, drawn), f"{split}-{number:03d}"
        write_bytes(folder / f"clips/{name}.opus", opus(clip))
        meta = {"voice": voice, "speed": speed, "noise": noise, "snr": snr}
        lines.append(_row(name, f"clips/{name}.opus", sentence, meta))
    write_text(folder / f"{split}.jsonl", "".join(lines))


def write_natural(folder: Path, source: Path) -> int:
    """Copy recordings of people without loss, and write their rows; how many there are."""
    import soundfile

    lines = []
    for file, said in NATURAL.items():
        raw: dict[str, Any] = {"samplerate": RATE, "channels": 1, "subtype": "PCM_16", "format": "RAW"}
        samples, rate = soundfile.read(source / file, dtype="int16", **(raw if file.endswith(".raw") else {}))
        name = f"natural-{Path(file).stem.rpartition('-')[2]}"
        content = io.BytesIO()
        soundfile.write(content, samples, rate, format="FLAC")
        write_bytes(folder / f"natural/{name}.flac", content.getvalue())
        lines.append(_row(name, f"natural/{name}.flac", said, {"voice": "natural", "source": f"pocketsphinx/{file}"}))
    write_text(folder / "natural.jsonl", "".join(lines))
    return len(lines)


def write_telephone(folder: Path, source: Path) -> dict[str, int]:
    """Write announcements of a telephone exchange, spoken by Allison Smith, and their rows; how many of each split.

    Those for training hold no signs, which she reads as words, and say nothing that those of evaluation say.
    """
    import gzip

    import soundfile
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    sounds = source / "asterisk/sounds/en_US_f_Allison"
    with gzip.open(source / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz", "rt", errors="replace") as file:
        pairs = [line.split(":", 1) for line in file if ":" in line and not line.startswith(";")]
    # Whole sentences only: no noises in brackets, and nothing that goes on in another file.
    said = {name.strip(): text.strip() for name, text in pairs if not re.search(r"[\[\]<>(]|\.\.\.", text)}
    fitting = [
        name
        for name, text in said.items()
        if (sounds / f"{name}.wav").is_file()
        and len(text.split()) >= 4
        and 1.5 <= soundfile.info(sounds / f"{name}.wav").duration <= 9
    ]
    random.Random(0).shuffle(fitting)
    splits = {split: fitting[part] for split, part in TELEPHONE.items()}
    kept = {_bare(said[name]) for name in splits["telephone"]}
    splits["telephone_train"] = [
        name
        for name in splits["telephone_train"]
        if _bare(said[name]) not in kept and not re.search("[*#]", said[name])
    ]
    for split, names in splits.items():
        lines = []
        for name in names:
            samples, rate = soundfile.read(sounds / f"{name}.wav", dtype="float32")
            clip = resample(Audio(torch.from_numpy(samples)[None], rate), RATE)
            file = f"{split}/{name.replace('/', '-')}.opus"
            write_bytes(folder / file, opus(clip.samples[0].numpy()))
            meta = {"voice": "allison", "source": f"asterisk-core-sounds-en/{name}.wav"}
            lines.append(_row(file.removesuffix(".opus").replace("/", "-"), file, _sentence(said[name]), meta))
        write_text(folder / f"{split}.jsonl", "".join(lines))
    return {split: len(names) for split, names in splits.items()}


def _sentence(said: str) -> str:
    """As people write it; the package's texts are careless about capitals and full stops."""
    whole = said[0].upper() + said[1:]
    return whole if whole[-1] in ".!?" else f"{whole}."


def _bare(said: str) -> str:
    """Only the letters, to compare."""
    return re.sub("[^a-z]", "", said.lower())


def _row(name: str, file: str, said: str, meta: dict[str, Any]) -> str:
    row = {"id": name, "text": "", "audio": file, "answer": said, "task": "transcribe", "meta": meta}
    return json.dumps(row) + "\n"


def speak(sentence: str, voice: str, speed: int) -> Audio:
    """A sentence in a voice of espeak-ng, at ``speed`` words a minute, at 16 kHz, with 0.1 s of silence around it."""
    import soundfile
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", sentence]
    try:
        spoken = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise SystemExit("espeak-ng is not installed; on Debian: apt-get install espeak-ng") from error
    samples, rate = soundfile.read(io.BytesIO(spoken), dtype="float32")
    audio = resample(Audio(torch.from_numpy(samples)[None], rate), RATE)
    return Audio(torch.nn.functional.pad(audio.samples, (RATE // 10, RATE // 10)), RATE)


def noisy(audio: Audio, snr: float, kind: str, drawn: np.random.Generator) -> np.ndarray:
    """Speech and noise, 10 log10(mean power of speech / mean power of noise) = ``snr`` dB, with a peak of 0.9.

    White noise has one power at all frequencies, pink noise a power of 1 / f.
    """
    import numpy as np

    speech = audio.samples[0].double().numpy()
    noise = drawn.standard_normal(len(speech))
    if kind == "pink":
        tilt = np.arange(len(speech) // 2 + 1, dtype=float)
        tilt[0] = 1
        noise = np.fft.irfft(np.fft.rfft(noise) / np.sqrt(tilt), len(speech))
    noise *= np.sqrt(np.mean(speech**2) / np.mean(noise**2) / 10 ** (snr / 10))
    return ((speech + noise) * 0.9 / np.abs(speech + noise).max()).astype(np.float32)


def opus(samples: np.ndarray, bits_per_second: int = 24_000) -> bytes:
    """The bytes of an Ogg Opus file at 16 kHz; the serial number, elsewhere random, is fixed."""
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
