"""Group-relative RL for models that hear and write: speech recognition and translation with Whisper.

    python scripts/train_speech.py                                      # the real Whisper tiny.en, minutes on a laptop
    python scripts/train_speech.py --config scripts/recipes/speech/whisper_adapt.yaml
    python scripts/train_speech.py --dry-run                            # the arithmetic of a run, nothing loaded

What its GRPO is: transcripts of a clip are compared with each other by what the word error rate says of them; each
token is a decision whose likelihood is that of the distribution it was sampled from, without the tokens that Whisper
suppresses. A clip is encoded once, for all its transcripts and, while the encoder is frozen, for the whole run.
What it is not: transcripts are drawn token by token, not by beam search, and clips are at most 30 seconds long. One
that cannot be heard is left out and listed, or stops the run; it is never replaced.
"""

from __future__ import annotations

from door import enter
from run import train
from speech import SpeechConfig, arithmetic, build_trainer

from mmgrpo.config import read


def main() -> None:
    config = read(SpeechConfig, description=__doc__ or "")
    print(arithmetic(config), flush=True)
    if not config.dry_run:
        train(config, "speech", build_trainer)


if __name__ == "__main__":
    enter(main)
